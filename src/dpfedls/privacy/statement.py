"""The privacy statement as facts: what is promised, to whom, under which assumptions."""

from __future__ import annotations

import functools
import math
from importlib.metadata import version
from typing import Any

import msgspec

from dpfedls.errors import InputError
from dpfedls.privacy import wording
from dpfedls.privacy.accountants import SMALLEST_DELTA, epsilon, gaussian_mu, profile
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.observers import Nodes, observers
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.wording import LedgerKind

_CURVE = [10.0**-k for k in range(2, 13)]


def statement(
    plan: PrivacyPlan,
    *,
    mode: str,
    ledger: LedgerKind = "durable",
    rounds_paid: int | None = None,
    ledger_head: str | None = None,
    most_samples: int | None = None,
    test_from: str | None = None,
    nodes: Nodes | None = None,
) -> dict[str, Any]:
    """The statement for ``rounds_paid`` rounds of the plan (all of them, where absent), as data.

    ``most_samples`` is the most that is trained on of one person, ``test_from`` whose the test
    samples are; each is said only if it is known. ``nodes`` says that people's data lay on nodes,
    and how; without it one machine held everything.
    """
    paid = plan.rounds if rounds_paid is None else rounds_paid
    most_samples = nodes.most_samples if nodes is not None else most_samples
    return {
        "mode": mode,
        "private": plan.is_private,
        "unit": "one client: all the data of one person, in all rounds",
        "relation": plan.relation,
        "released": "the model after every round, and everything computed from it",
        "observers": observers(plan.round_event, paid, plan.target_delta, nodes),
        "trust": wording.trust(mode, nodes),
        **_cost(plan.round_event, paid, plan.target_delta),
        "mechanism": {
            "sampler": type(plan.sampler).__name__,
            "rate": plan.round_event.rate,
            "num_clients": plan.num_clients,
            "expected_cohort": plan.expected_cohort,
            "rounds": plan.rounds,
            "rounds_paid": paid,
            "clipping": msgspec.to_builtins(plan.clipping),
            "clip_norm": plan.clipping.start,
            "sensitivity": plan.sensitivity(plan.clipping.start),
            "noise_multiplier": plan.noise_multiplier,
            "noise_stddev": plan.noise_stddev(plan.clipping.start),
            "most_samples": most_samples,
        },
        "test_from": test_from,
        "enforced": wording.enforced(ledger, most_samples, nodes),
        "assumed": wording.assumed(mode, ledger, nodes),
        "not_covered": wording.not_covered(test_from, nodes),
        "left_without_noise": wording.left_without_noise(nodes),
        "ledger": ledger,
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
    smaller = (delta * 10 ** (-k / 2) for k in range(1, 23))
    candidates = [d for d in smaller if d >= SMALLEST_DELTA]
    fitting = [
        people * e
        for d, e in zip(candidates, profile(spent, candidates), strict=True)
        if (people - 1) * e < 700 and people * math.exp((people - 1) * e) * d <= delta
    ]
    return min(fitting, default=None)
