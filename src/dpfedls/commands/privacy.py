"""``dpfedls privacy``: ε, noise and rounds from each other, and what a run promised."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dpfedls.commands.output import Json, answer, one_line, pairs, shown
from dpfedls.errors import InputError, require_fraction, require_positive

if TYPE_CHECKING:
    from dpfedls.privacy.plan import PrivacyPlan
    from dpfedls.sampling import Sampler

app = typer.Typer(help="What a run costs, what it needs, what it promised.", no_args_is_help=True)


CONVENTION = "the paper's: z is noise ÷ sensitivity, and the older RDP conversion"


class Sampling(StrEnum):
    """How a cohort is drawn."""

    POISSON = "poisson"
    FIXED = "fixed"


class Accountant(StrEnum):
    """How ε is computed."""

    PLD = "pld"
    RDP = "rdp"
    CLOSED_FORM = "closed-form"
    PAPER = "paper"


SamplingOption: TypeAlias = Annotated[Sampling, typer.Option(help="How a cohort is drawn.")]
Clients: TypeAlias = Annotated[int, typer.Option(help="How many people there are.")]
Rate: TypeAlias = Annotated[float, typer.Option(help="Share of the people in a round.")]
Rounds: TypeAlias = Annotated[int, typer.Option(help="How many rounds.")]
Noise: TypeAlias = Annotated[
    float, typer.Option(help="Noise stddev on the sum ÷ clip norm (with 'paper': its z).")
]
Epsilon: TypeAlias = Annotated[float, typer.Option(help="The ε to stay within.")]
Delta: TypeAlias = Annotated[float | None, typer.Option(help="δ; clients^-1.1 where absent.")]
AccountantOption: TypeAlias = Annotated[Accountant, typer.Option(help="How ε is computed.")]
RunFolder: TypeAlias = Annotated[Path, typer.Argument(help="The run folder.")]


@app.command()
def epsilon(
    sampling: SamplingOption,
    clients: Clients,
    rate: Rate,
    rounds: Rounds,
    noise_multiplier: Noise,
    delta: Delta = None,
    accountant: AccountantOption = Accountant.PLD,
    json: Json = False,
) -> None:
    """The ε that a run costs."""
    from dpfedls.privacy.plan import PrivacyPlan

    plan = PrivacyPlan(
        sampler=_sampler(sampling, clients, rate),
        num_clients=clients,
        rounds=rounds,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        delta=delta,
    )
    values: dict[str, Any] = {
        "epsilon": plan.epsilon(accountant.value),
        "delta": plan.delta,
        "accountant": accountant.value,
        "relation": plan.relation,
        "noise_multiplier": noise_multiplier,
    }
    if accountant is Accountant.PAPER:
        values["convention"] = CONVENTION
        values["epsilon_as_added"] = plan.epsilon("rdp")
        values["epsilon_as_added_tight"] = plan.epsilon("pld")
    answer(values, json, pairs(values, list(values)))


@app.command()
def noise(
    epsilon: Epsilon,
    sampling: SamplingOption,
    clients: Clients,
    rate: Rate,
    rounds: Rounds,
    delta: Delta = None,
    clip_norm: Annotated[float, typer.Option(help="Bound on each update's norm.")] = 1.0,
    accountant: AccountantOption = Accountant.PLD,
    json: Json = False,
) -> None:
    """The noise that keeps a run within ε."""
    from dpfedls.privacy.accounting.closed_form import closed_form_noise
    from dpfedls.privacy.plan import PrivacyPlan

    plan = PrivacyPlan(
        sampler=_sampler(sampling, clients, rate),
        num_clients=clients,
        rounds=rounds,
        clip_norm=clip_norm,
        delta=delta,
    )
    if accountant is Accountant.PAPER:
        values = _paper_noise(plan, epsilon)
        answer(values, json, pairs(values, list(values)))
        return
    plan = plan.calibrated(epsilon, accountant.value)
    values: dict[str, Any] = {
        "noise_multiplier": plan.noise_multiplier,
        "noise_stddev": plan.noise_stddev(plan.clipping.start),
        "epsilon": plan.epsilon(accountant.value),
        "delta": plan.delta,
        "accountant": accountant.value,
        "relation": plan.relation,
    }
    if accountant is Accountant.CLOSED_FORM:
        found = closed_form_noise(
            epsilon,
            sampler=plan.sampler,
            num_clients=clients,
            rounds=rounds,
            delta=plan.target_delta,
        )
        values |= {"lambda": found.lambda_, "alpha": found.alpha, "epsilon_pld": plan.epsilon()}
    answer(values, json, pairs(values, list(values)))


@app.command()
def rounds(
    epsilon: Epsilon,
    noise_multiplier: Noise,
    sampling: SamplingOption,
    clients: Clients,
    rate: Rate,
    delta: Delta = None,
    accountant: AccountantOption = Accountant.PLD,
    json: Json = False,
) -> None:
    """How many rounds stay within ε."""
    from dpfedls.privacy.accountants import check_promise, rounds_for, usual_delta
    from dpfedls.privacy.accountants import epsilon as epsilon_of
    from dpfedls.privacy.event import RoundEvent

    event = RoundEvent(
        sampler=_sampler(sampling, clients, rate),
        num_clients=clients,
        noise_multiplier=noise_multiplier,
    )
    at = delta if delta is not None else usual_delta(clients)
    check_promise(at, clients)
    found = rounds_for(epsilon, event=event, delta=at, accountant=accountant.value)
    if not found:
        one = epsilon_of([(event, 1)], at, accountant.value)
        raise InputError(
            f"--epsilon {epsilon:g} covers no round: one costs {one:.4g} at delta = {at:.3g} with "
            f"--noise-multiplier {noise_multiplier:g}; allow that much, or add more noise "
            "('dpfedls privacy noise' says how much)"
        )
    values = {
        "rounds": found,
        "epsilon": epsilon_of([(event, found)], at, accountant.value),
        "delta": at,
        "accountant": accountant.value,
        "relation": event.sampler.relation,
    }
    if accountant is Accountant.PAPER:
        values["convention"] = CONVENTION
    answer(values, json, pairs(values, list(values)))


@app.command()
def plan(
    clients: Clients,
    epsilon: Epsilon,
    delta: Delta = None,
    cohort_at_most: Annotated[
        int | None, typer.Option(help="Most people that a round can have.")
    ] = None,
    rounds_at_most: Annotated[int | None, typer.Option(help="Most rounds there can be.")] = None,
    json: Json = False,
) -> None:
    """Plans for a promise: how many people a round, how many rounds, and what each costs."""
    from dpfedls.auto.planner import candidates, choose_plan, people_needed

    found = candidates(
        clients, epsilon, delta, cohort_at_most=cohort_at_most, rounds_at_most=rounds_at_most
    )
    rows = list(found)
    row = choose_plan(iter(rows))
    shown_rows = [
        {
            "cohort": r.plan.expected_cohort,
            "rounds": r.plan.rounds,
            "noise_multiplier": r.plan.noise,
            "waste": r.waste,
            "client_rounds": r.client_rounds,
        }
        for r in rows
    ]
    values = {
        "rows": shown_rows,
        "chosen": shown_rows[rows.index(row)],
        "clients": clients,
        "epsilon": epsilon,
        "delta": row.plan.target_delta,
        "people_needed": people_needed(epsilon, row, delta),
    }
    answer(values, json, _plans(values))


def _plans(values: dict[str, Any]) -> str:
    head = f"{'cohort':>9} {'rounds':>7} {'noise':>8} {'waste':>7} {'trainings':>11}"
    lines = [
        f"{r['cohort']:>9.6g} {r['rounds']:>7} {r['noise_multiplier']:>8.3f} {r['waste']:>7.2f} "
        f"{r['client_rounds']:>11,.0f}{'  ← chosen' if r == values['chosen'] else ''}"
        for r in values["rows"]
    ]
    notes = [
        f"Poisson sampling, ε = {values['epsilon']:g} at δ = {values['delta']:.3g}. waste: noise "
        "relative to a single release with everybody, the lowest possible; trainings: of all "
        "people together. Chosen: the cheapest plan with low waste, and with the most rounds where "
        "noise is small."
    ]
    if values["people_needed"] > values["clients"]:
        notes.append(f"A useful model needs about {values['people_needed']} people at this ε.")
    return "\n".join([head, *lines, *notes])


@app.command()
def statement(run: RunFolder, json: Json = False) -> None:
    """The privacy statement of a run, if it is what the run's ledger gives."""
    from dpfedls.privacy.wording import text
    from dpfedls.runs.verify import read_statement
    from dpfedls.runs.verify import verify as verify_run

    verdict = verify_run(run)
    for problem in verdict["problems"]:
        print(f"dpfedls: failed verification: {one_line(problem)}", file=sys.stderr)
    if verdict["problems"]:  # nobody should be able to sign what does not hold
        raise typer.Exit(1)
    for note in verdict["notes"]:
        print(f"dpfedls: note: {note}", file=sys.stderr)
    values = read_statement(run)
    answer(values, json, text(values))


@app.command()
def verify(run: RunFolder, json: Json = False) -> None:
    """Recompute a run's account from its folder and name whatever does not add up."""
    from dpfedls.runs.verify import verify as verify_run

    values = verify_run(run)
    answer(values, json, _checklist(values))
    if not values["valid"]:
        raise typer.Exit(1)


@app.command()
def total(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs on the same people.")],
    delta: Annotated[float | None, typer.Option(help="δ; the largest of the runs' own.")] = None,
    json: Json = False,
) -> None:
    """What several runs on the same people cost together."""
    from dpfedls.runs.total import total as total_of

    values = total_of(runs, delta)
    each = [
        f"  {r['run']}: {r['rounds']} rounds of {r['clients']} clients, ε = "
        f"{shown(r['epsilon'])} at δ = {shown(r['delta'])}"
        for r in values["runs"]
    ]
    together = (
        f"ε = {shown(values['epsilon'])} at δ = {shown(values['delta'])} for each person "
        f"({values['relation'].replace('-', ' ')}), over all of"
    )
    assumed = [f"assumed: {line}" for line in values["assumed"]]
    answer(values, json, "\n".join([together, *each, *assumed]))


def _checklist(values: dict[str, Any]) -> str:
    verdict = "valid" if values["valid"] else "NOT valid"
    lines = [
        f"{verdict}: ε = {shown(values['spent_epsilon'])} at δ = {shown(values['delta'])} was "
        f"spent for each person ({values['relation'].replace('-', ' ')}), {values['mode']}"
    ]
    if values["left_without_noise"]:
        lines.append(f"! outside every ε, left WITHOUT NOISE: {values['left_without_noise']}")
    for check in values["checks"]:
        detail = f": {check['detail']}" if check["detail"] else ""
        lines.append(f"{'✓' if check['ok'] else '✗'} {check['check']}{detail}")
    lines += [f"? not checked: {what}" for what in values["not_checked"]]
    return "\n".join([*lines, *(f"note: {what}" for what in values["notes"])])


def _paper_noise(plan: PrivacyPlan, epsilon: float) -> dict[str, Any]:
    """The paper's z for an ε, and the noise on the sum that earns it: z · sensitivity."""
    from dpfedls.privacy.accountants import epsilon as epsilon_of
    from dpfedls.privacy.accountants import noise_multiplier_for
    from dpfedls.privacy.event import RoundEvent

    z = noise_multiplier_for(
        epsilon,
        sampler=plan.sampler,
        num_clients=plan.num_clients,
        rounds=plan.rounds,
        delta=plan.target_delta,
        accountant="paper",
    )
    event = RoundEvent(sampler=plan.sampler, num_clients=plan.num_clients, noise_multiplier=z)
    return {
        "noise_multiplier": z,
        "noise_stddev": z * plan.sensitivity(plan.clipping.start),
        "epsilon": epsilon_of([(event, plan.rounds)], plan.target_delta, "paper"),
        "delta": plan.delta,
        "accountant": "paper",
        "relation": plan.relation,
        "convention": CONVENTION,
    }


def _sampler(sampling: Sampling, clients: int, rate: float) -> Sampler:
    from dpfedls.sampling import FixedSizeSampling, PoissonSampling

    if sampling is Sampling.POISSON:
        return PoissonSampling(rate=rate)
    require_positive("--clients", clients, "it is how many people there are")
    require_fraction("--rate", rate, "it is a share of the clients")
    people = rate * clients
    cohort = max(round(people), 1)
    # To a hundredth of a person: a rate of 1.4e-6 of a million is no cohort of one.
    if abs(cohort - people) > 0.01:
        raise InputError(
            f"--rate {rate:g} of {clients} clients is {people:g} people, and a fixed-size cohort "
            f"is a whole number; for {cohort} use --rate {cohort / clients:.12g}"
        )
    return FixedSizeSampling(cohort=cohort)
