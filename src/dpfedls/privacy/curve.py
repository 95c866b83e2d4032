"""ε after each round of a run, for progress bars, logs and figures."""

from __future__ import annotations

import functools

import numpy as np

from dpfedls.privacy.accountants import epsilon
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.plan import PrivacyPlan

_EXACT = 48  # this many rounds are computed; the others show the ε of the next one computed


def epsilon_by_round(plan: PrivacyPlan) -> tuple[float, ...]:
    """ε (by pld, at the plan's δ) after 0, 1, …, T rounds.

    Guarantees: exact at T, and for every round where T is at most 48; elsewhere rounded up to a
    later round's ε, so never too small.
    """
    return _by_round(plan.round_event, plan.rounds, plan.target_delta)


@functools.lru_cache(maxsize=64)
def _by_round(event: RoundEvent, rounds: int, delta: float) -> tuple[float, ...]:
    computed = np.unique(np.geomspace(1, rounds, _EXACT).round().astype(int))
    if rounds <= _EXACT:
        computed = np.arange(1, rounds + 1)
    costs = [epsilon([(event, int(count))], delta) for count in computed]
    upwards = np.searchsorted(computed, np.arange(1, rounds + 1))
    return (0.0, *np.maximum.accumulate(costs)[upwards].tolist())
