"""The privacy statement: what is promised, to whom, under which assumptions, on one page."""

from __future__ import annotations

import functools
import math
from importlib.metadata import version
from typing import Any

from dpfedls.errors import InputError
from dpfedls.privacy.accountants import epsilon, gaussian_mu, profile
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.plan import PrivacyPlan

_CURVE = [10.0**-k for k in range(2, 13)]


def statement(
    plan: PrivacyPlan,
    *,
    mode: str,
    rounds_paid: int | None = None,
    ledger_head: str | None = None,
) -> dict[str, Any]:
    """The statement for ``rounds_paid`` rounds of the plan (all of them, where absent), as data."""
    paid = plan.rounds if rounds_paid is None else rounds_paid
    return {
        "mode": mode,
        "private": plan.is_private,
        "unit": "one client: all the data of one person, in all rounds",
        "relation": plan.relation,
        "released": "the model after every round, and everything computed from it",
        "trust": _TRUST[mode],
        **_cost(plan.round_event, paid, plan.target_delta),
        "mechanism": {
            "sampler": type(plan.sampler).__name__,
            "rate": plan.round_event.rate,
            "num_clients": plan.num_clients,
            "expected_cohort": plan.expected_cohort,
            "rounds": plan.rounds,
            "rounds_paid": paid,
            "clip_norm": plan.clip_norm,
            "sensitivity": plan.sensitivity,
            "noise_multiplier": plan.noise_multiplier,
            "noise_stddev": plan.noise_stddev,
        },
        "enforced": _ENFORCED,
        "assumed": _ASSUMED[mode],
        "not_covered": _NOT_COVERED,
        "ledger_head": ledger_head,
        "versions": {
            name: version(name) for name in ("dpfedls", "dp-accounting", "numpy", "scipy")
        },
    }


@functools.lru_cache(maxsize=64)  # the cells of an experiment often share one mechanism
def _cost(event: RoundEvent, paid: int, delta: float) -> dict[str, Any]:
    """Everything in a statement that has to be computed."""
    spent = [(event, paid)]
    deltas = sorted({*_CURVE, delta}, reverse=True)
    curve = profile(spent, deltas)
    own = curve[deltas.index(delta)]
    return {
        "epsilon": own,
        "delta": delta,
        "accountant": "pld",
        "curve": [{"delta": d, "epsilon": e} for d, e in zip(deltas, curve, strict=True)],
        "mu": _mu(deltas, curve),
        "epsilon_by_accountant": {
            "pld": own,
            "rdp": epsilon(spent, delta, "rdp"),
            "closed-form": _closed_form(spent, delta),
        },
        "group_privacy": [
            {"people": k, "epsilon": _group(spent, delta, k), "delta": delta} for k in (2, 4)
        ],
    }


def text(values: dict[str, Any]) -> str:
    """The statement as one page of Markdown."""
    how = values["mechanism"]
    compared = values["epsilon_by_accountant"]
    lines = [
        "# Privacy statement",
        "",
        _SIMULATED if values["mode"] == "simulation" else _DEPLOYED,
        "",
    ]
    if not values["private"]:
        lines += ["**No noise was added: this run is NOT private.**", ""]
    lines += [
        f"**ε = {_number(values['epsilon'])} at δ = {values['delta']:.3g}** for each person "
        f"({values['relation'].replace('-', ' ')}), after {how['rounds_paid']} of {how['rounds']} "
        "rounds.",
        "",
        f"- **Unit of privacy:** {values['unit']}.",
        f"- **Released:** {values['released']}.",
        f"- **Trust:** {values['trust']}.",
        f"- **Mechanism:** {how['sampler']}, {how['expected_cohort']:g} of {how['num_clients']} "
        f"clients expected in each round (rate {how['rate']:g}); each update clipped to "
        f"{how['clip_norm']:g}; Gaussian noise of standard deviation {how['noise_stddev']:g} on "
        f"the sum (noise multiplier {how['noise_multiplier']:g}, sensitivity "
        f"{how['sensitivity']:g}).",
        "- **By accountant:** "
        + ", ".join(f"{name} {_number(value)}" for name, value in compared.items())
        + ". All are upper bounds on the same mechanism; pld is the tightest.",
        f"- **Gaussian DP:** μ = {_number(values['mu'])} covers the whole curve below.",
        "- **Groups at the same δ:** "
        + ", ".join(
            f"{group['people']} people ε = {_number(group['epsilon'])}"
            for group in values["group_privacy"]
        )
        + ".",
        "",
        "| δ | ε |",
        "|---|---|",
        *(f"| {point['delta']:.3g} | {_number(point['epsilon'])} |" for point in values["curve"]),
    ]
    for title, key in (
        ("Enforced by the code", "enforced"),
        ("Assumed, and not checked", "assumed"),
        ("Not covered", "not_covered"),
    ):
        lines += ["", f"## {title}", "", *(f"- {item}." for item in values[key])]
    versions = ", ".join(f"{name} {number}" for name, number in values["versions"].items())
    lines += ["", f"Ledger head: {values['ledger_head'] or 'none (kept in memory)'}. {versions}."]
    return "\n".join(lines) + "\n"


_SIMULATED = (
    "**Simulation.** Noise and sampling came from a seed, so whoever knows the seed can undo them. "
    "The numbers say what the same run would cost when deployed; they protect nobody here."
)
_DEPLOYED = "**Deployed.** Noise and sampling came from the operating system's entropy."
_TRUST = {
    "simulation": "one machine holds everyone's data; nobody is protected from it",
    "deployed": "the server sees clipped updates and is trusted to add noise; everyone else, "
    "clients included, sees releases only",
}
_ENFORCED = [
    "every update has ℓ2 norm at most the clip norm, measured in float64; one with NaN or infinity "
    "counts as zero",
    "all clients weigh the same, and the denominator is the public expected cohort",
    "noise level, denominator and number of rounds do not depend on anybody's data",
    "each round is paid for in the ledger before its noise is drawn",
    "denoising, averaging and evaluation see releases only",
]
_ASSUMED = {
    "simulation": [
        "one person is one client and appears only once",
        "the deployed run samples, clips and adds noise as this one did",
    ],
    "deployed": [
        "one person is one client and appears only once",
        "the server runs this code unaltered, and who takes part stays secret",
        "samples are well formed: a malformed one stops a run before it starts, for all to see",
        "the operating system's entropy is good",
    ],
}
_NOT_COVERED = [
    "hyper-parameters tuned on the same people's data",
    "data used to pre-train or to choose the model",
    "side channels: memory, traffic, who is asked to take part, and timing (a log of how long "
    "rounds took follows the size of their cohorts)",
    "accuracy reported on samples that belong to the people trained on",
]


def _closed_form(spent: list[Any], delta: float) -> float | None:
    try:
        return epsilon(spent, delta, "closed-form")
    except InputError:  # the theorem's conditions fail here, so it says nothing
        return None


def _mu(deltas: list[float], curve: list[float]) -> float:
    """The least μ whose Gaussian curve lies on or above every point of the curve."""
    if math.inf in curve:
        return math.inf
    return max(
        (gaussian_mu(e, d) for d, e in zip(deltas, curve, strict=True) if e > 0), default=0.0
    )


def _group(spent: list[Any], delta: float, people: int) -> float | None:
    """ε of a group at the same δ: k·ε′ where k·e^((k−1)ε′)·δ′ ≤ δ (Dwork and Roth, Theorem 2.2)."""
    candidates = [delta * 10 ** (-k / 2) for k in range(1, 23)]
    fitting = [
        people * e
        for d, e in zip(candidates, profile(spent, candidates), strict=True)
        if (people - 1) * e < 700 and people * math.exp((people - 1) * e) * d <= delta
    ]
    return min(fitting, default=None)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return "∞" if math.isinf(value) else f"{value:.4g}"
