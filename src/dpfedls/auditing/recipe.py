"""The audit of a recipe: real runs with a hostile person in them, and all that leaves looked at."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dpfedls.auditing import cohorts, noise
from dpfedls.auditing.accounting import delta_at
from dpfedls.auditing.boundary import Seen, boundary, fresh_problems, released
from dpfedls.auditing.bounds import largest_deviation, scale_error_found
from dpfedls.auditing.canary import FEWEST, CanaryAudit, audit_canaries, check_canaries
from dpfedls.auditing.instruments import Record
from dpfedls.auditing.kept import kept_notes, kept_problems
from dpfedls.auditing.public import following_problems, replayed
from dpfedls.auditing.stall import first_asked
from dpfedls.auditing.votes import vote_problems
from dpfedls.auditing.whole import company_problems, deployed, whole_run_problems
from dpfedls.auditing.worlds import (
    made_up_lengths,
    run_made_up,
)
from dpfedls.denoising import AnyCallable
from dpfedls.errors import InputError
from dpfedls.people.rescale import Rescale
from dpfedls.people.survey import Measured
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import SeededStreams
from dpfedls.runs.fitting import ready
from dpfedls.runs.recipe import Recipe, built
from dpfedls.runs.simulate import prepare
from dpfedls.sampling import FixedSizeSampling
from dpfedls.tasks.task import Task, make_task

ROUNDS = 8  # of each whole run
TRIALS = 300  # cheap rounds with made-up updates
FEWEST_TRIALS = 60
CONFIDENCE = 0.9999  # of mu_lower
_QUESTIONS = 2, 6  # rounds: with more there is room for sizes or scores, for means and distances
_USUAL = "centre", "scale", "within", "at_once"  # what may be asked of usual inputs
_EMPTY = 5  # rounds without anybody
NEAR = 0.97  # a bound below this share of the claim has not seen the mechanism that is claimed
NOTE = (
    "Passing proves nothing: nothing was seen that the claim does not allow, and another look "
    "might. A failure means that the claim is wrong, unless it is one of about three false alarms "
    "in ten thousand audits: repeat it with another --seed."
)
Advance = Callable[[int, str], None]


def audit(
    recipe: Recipe,
    task: Task | None = None,
    denoiser: AnyCallable | None = None,
    *,
    rounds: int = ROUNDS,
    trials: int = TRIALS,
    canaries: int | None = 0,
    folder: Path | None = None,
    watch: Advance = lambda done, note: None,
) -> dict[str, Any]:
    """Run the recipe with a hostile person and without, and say what leaves that should not.

    ``task`` and ``denoiser`` are a person's own objects where the recipe does not name them.
    Looked at are ``rounds`` rounds of whole runs in temporary folders, and ``trials`` cheap rounds
    in memory; with ``canaries`` also one training run in which so many clients send random
    directions; with ``folder`` also what a run of this recipe has left there.
    """
    streams = SeededStreams(recipe.seed)
    task = task or make_task(recipe.task, recipe.plan.num_clients, streams)
    recipe = ready(recipe, task)
    check_auditable(recipe.plan, trials)
    if canaries:  # before the minutes that come first
        check_canaries(recipe.plan, canaries)
    denoiser = denoiser or built(recipe.denoiser)
    alone = _alone(recipe)
    shorter = msgspec.structs.replace(_asking_nothing(alone), plan=_shorter(recipe.plan, rounds))
    small = _briefly_asking(shorter, alone)
    watch(0, "many cheap rounds")
    made_up, seen, problems = _many_rounds(alone, trials)
    person = person_in(made_up)
    problems["rounds where nobody comes"] = _empty_problems(alone)
    if folder is not None:
        problems["the run folder"] = kept_problems(folder)
    watch(1, "deployed noise")
    problems["deployed noise"] = noise.deployed_problems()
    watch(2, "whole runs")
    with tempfile.TemporaryDirectory(prefix="dpfedls-audit-") as place:
        try:
            problems |= whole_run_problems(small, task, denoiser, Path(place), made_up, person)
            problems |= vote_problems(_asking_nothing(alone), task, denoiser, person)
        except InputError as error:  # whatever people send, a run goes on
            problems["whole runs"] = [f"one stopped: {error}"]
    problems["people in company"] = company_problems(small, task, denoiser, made_up)
    claimed = recipe.plan.epsilon()
    plan = recipe.plan
    if delta_at(claimed, plan.sampler, plan.num_clients, seen.noise_multiplier, plan.rounds) > (
        1.01 * plan.target_delta
    ):
        problems["the plan's ε"] = ["it is smaller than what the rounds cost with the noise added"]
    mu_claimed = plan.sensitivity(1.0) / plan.noise_stddev(1.0)
    mu_lower = _mu_lower(alone, trials, made_up, seen)
    problems["the bound on μ"] = _bound_problems(mu_lower, mu_claimed)
    watch(3, "canaries")
    canaried = canary_run(recipe, task, denoiser, canaries)
    problems["canaries"] = [
        f"they show ε >= {found.epsilon_lower:.4g} in {found.seen}, claimed {claimed:.4g}"
        for found in canaried
        if found.epsilon_lower > claimed
    ]
    watch(4, "")
    found = [f"{where}: {text}" for where, texts in problems.items() for text in texts]
    return {
        "mu_lower": mu_lower,
        "mu_claimed": mu_claimed,
        "epsilon_lower": run_epsilon(plan, mu_lower),
        "epsilon_claimed": claimed,
        "delta": plan.target_delta,
        "consistent": not found,
        "problems": found,
        "confidence": CONFIDENCE,
        "checks": {where: len(texts) for where, texts in problems.items()},
        "power": {
            "noise_values": seen.noise.size,
            "noise_scale_error_found": scale_error_found(seen.noise.size, noise.FALSE_ALARMS / 10),
            "deployed_values": noise.DRAWS,
            "deployed_scale_error_found": scale_error_found(noise.DRAWS, noise.FALSE_ALARMS / 10),
            "with_probability": 0.99,
        },
        "relation": plan.relation,
        "rounds": plan.rounds,
        "trials": trials,
        "folder": None if folder is None else str(folder),
        "canary": msgspec.to_builtins(canaried),
        "notes": [*([] if folder is None else kept_notes(folder)), *not_seen(recipe, trials)],
        "note": NOTE,
    }


def check_auditable(plan: PrivacyPlan, trials: int) -> None:
    """Refuse what makes no claim, and what could show nothing."""
    if not plan.is_private:
        raise InputError(
            "plan.noise_multiplier is 0: no noise, so no privacy is claimed and there is nothing "
            "to audit; choose a recipe with noise, or set plan.noise_multiplier=1"
        )
    if not isinstance(trials, int) or trials < FEWEST_TRIALS:
        raise InputError(
            f"trials must be at least {FEWEST_TRIALS}, got {trials!r}; fewer rounds cannot tell "
            f"right cohorts from wrong ones: {TRIALS} take seconds"
        )


def run_epsilon(plan: PrivacyPlan, mu: float) -> float:
    """ε of the whole run at the plan's δ, if one round with the person in it were μ-GDP.

    Sampling and the number of rounds are taken as the plan says; the accountant is pld.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    noise_multiplier = plan.sampler.sensitivity_in_clip_norms / mu
    if noise_multiplier < 1e-9:
        return math.inf
    return msgspec.structs.replace(plan, noise_multiplier=noise_multiplier).epsilon()


def person_in(record: Record) -> int:
    """Whose first update is clipped, as early as can be: it moves that sum by all it may."""
    known: set[int] = set()
    for seen in record:
        lengths = made_up_lengths(seen.cohort, seen.number)
        for j, length in zip(seen.cohort.tolist(), lengths, strict=True):
            if j not in known and 1 <= length < math.inf:
                return j
        known |= set(seen.cohort.tolist())
    return 0


def canary_run(
    recipe: Recipe, task: Task, denoiser: AnyCallable, count: int | None
) -> list[CanaryAudit]:
    """Train the recipe once with canaries among its clients; none is no run."""
    if count == 0:
        return []
    simulation, model = prepare(_asking_nothing(recipe), task, denoiser)
    server, layout = simulation.server, simulation.server.layout
    if count is None:
        # Canaries are each other's noise: k of them in d dimensions show no more than μ = √(d/k).
        count = max(FEWEST, min(500, recipe.plan.num_clients // 2, layout.dim // 4))
    return audit_canaries(simulation, server.start(layout.read(model)), count, recipe.seed)


def _alone(recipe: Recipe) -> Recipe:
    """The same promise outside any population, to be run as a simulation."""
    return msgspec.structs.replace(
        recipe, calibrate=None, population=None, budget=None, diagnose=False, mode="simulation",
        device="cpu",
    )  # fmt: skip


def _briefly_asking(recipe: Recipe, whole: Recipe) -> Recipe:
    """Each question in one round, so that a few rounds hold them all, and trainings."""
    rounds, asks = recipe.plan.rounds, whole.standardise
    if isinstance(whole.rescale, Rescale) and rounds > _QUESTIONS[0]:
        briefly = msgspec.structs.replace(whole.rescale, rounds=1)
        recipe, rounds = msgspec.structs.replace(recipe, rescale=briefly), rounds - 1
    if not isinstance(asks, Measured) or rounds <= _QUESTIONS[0]:
        return recipe
    later = 1 if asks.later and rounds > _QUESTIONS[1] else 0
    usual = {n: bool(later and getattr(asks, n)) for n in _USUAL}
    asks = msgspec.structs.replace(asks, first=1, sizes=1, later=later, **usual)
    return msgspec.structs.replace(recipe, standardise=asks)


def _asking_nothing(recipe: Recipe) -> Recipe:
    """Trainings from the first round to the last, in units as given."""
    asks = recipe.standardise
    given = False if isinstance(asks, Measured) else asks
    return msgspec.structs.replace(recipe, standardise=given, rescale=False)


def _shorter(plan: PrivacyPlan, rounds: int) -> PrivacyPlan:
    return msgspec.structs.replace(plan, rounds=min(plan.rounds, rounds))


def not_seen(recipe: Recipe, trials: int) -> list[str]:
    """Of votes, what the rounds that were made could not show."""
    first, rounds = first_asked(recipe), recipe.plan.rounds
    if recipe.local.shorten is not None and first is None:
        return [
            f"local.shorten has no effect: with so few people, or so much noise, votes of "
            f"{rounds} rounds would tell nothing, so nobody is asked"
        ]
    # Three tenths of the rounds, or of the trials if these are more, and the first stall is seen.
    if first is not None and trials < 0.3 * rounds + 1:
        return [
            f"of {rounds} rounds {trials} were made up, which is too few for people to vote that "
            f"learning stalls; with --trials {math.ceil(0.3 * rounds) + 1} they do"
        ]
    return []


def _many_rounds(recipe: Recipe, trials: int) -> tuple[Record, Seen, dict[str, list[str]]]:
    """Cheap rounds, seeded and deployed: the boundary, the noise, the cohorts."""
    plan, problems = recipe.plan, {}
    kept = None
    for name, chosen in (("seeded", recipe), ("deployed", deployed(recipe))):
        made = run_made_up(chosen, trials)
        record, seen = made.record, boundary(plan, made.record)
        problems[f"{name} rounds"] = seen.problems or following_problems(made, replayed(made))
        draws = [r.draws[0].cpu().numpy() for r in record if len(r.draws) == 1]
        if len({len(drawn) for drawn in draws}) == 1:
            drawn = np.stack(draws)
            problems[f"{name} rounds' noise"] = noise.noise_problems(drawn)
        problems[f"{name} cohorts"] = cohorts.cohort_problems(
            plan.sampler, plan.num_clients, [r.trained for r in record]
        )
        kept = kept or (record, seen)
    assert kept is not None
    return *kept, problems


def _empty_problems(recipe: Recipe) -> list[str]:
    """With hardly anybody sampled a cohort is empty: noise is drawn, paid for and released."""
    plan = recipe.plan
    if isinstance(plan.sampler, FixedSizeSampling):
        return []
    sampler = msgspec.structs.replace(plan.sampler, rate=1e-3 / plan.num_clients)
    plan = msgspec.structs.replace(plan, sampler=sampler)
    record = run_made_up(msgspec.structs.replace(recipe, plan=plan), _EMPTY).record
    seen = boundary(plan, record)
    if len(list(record)) < _EMPTY:
        return [*seen.problems, "a round without a cohort is left out"]
    return seen.problems + fresh_problems(record)


def _mu_lower(recipe: Recipe, trials: int, record: Record, seen: Seen) -> float:
    """How far the person moves releases, same noise, ÷ the largest likely noise."""
    plan, person = recipe.plan, (person_in(record),)
    replaced = isinstance(plan.sampler, FixedSizeSampling)
    without = run_made_up(
        recipe, trials, absent=() if replaced else person, opposite=person if replaced else ()
    ).record
    moved = [0.0]
    for here, gone in zip(record, without, strict=False):
        if here.releases and gone.releases:
            way = np.linalg.norm(released(plan, here) - released(plan, gone))
            moved.append(float(way) / plan.noise_stddev(here.bounds[0].norm))
        if here.bounds[0].indicator and person[0] in here.cohort:
            break  # from here on the two runs clip, and add noise, by norms of their own
    most, deviation = np.max(moved), largest_deviation(seen.noise, CONFIDENCE)
    # What is not finite, or has no noise, shows everything.
    return float(most / deviation) if np.isfinite(most) and 0 < deviation < math.inf else math.inf


def _bound_problems(lower: float, claimed: float) -> list[str]:
    if lower > claimed:
        return [f"μ >= {lower:.4g}, claimed {claimed:.4g}: a person shows more than is promised"]
    if lower < NEAR * claimed:
        return [
            f"μ >= {lower:.4g} is far below the claim of {claimed:.4g}: a person who does all they "
            "can is hardly seen, so this is not the mechanism that is claimed"
        ]
    return []
