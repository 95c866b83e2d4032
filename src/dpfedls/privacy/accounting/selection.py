"""What it costs to choose the best of many runs on the same people: repeat and select.

Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", Theorem 6: the
number of repetitions is itself random, Poisson with a public mean. docs/privacy.md has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpfedls.errors import require_finite
from dpfedls.privacy.accounting import pld
from dpfedls.privacy.accounting.rdp import ORDERS, rdp_curve
from dpfedls.privacy.accounting.spent import Spent

# Each order by itself gives a bound, so a few suffice; every one costs a composition per mechanism.
_PLACES = np.flatnonzero(np.isin(ORDERS, [1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64]))


def best_of_many_epsilon(mechanisms: Sequence[Spent], repetitions: float, delta: float) -> float:
    """ε of releasing only the best of K ~ Poisson(repetitions) runs, each of a random mechanism.

    Guarantees: an upper bound if K, and before every run which mechanism it is, are drawn from
    public distributions and kept secret, noise is fresh, and "best" is decided by what is public:
    the released model and public samples, from none of these people. With K = 0 nothing is
    released.
    """
    from dp_accounting.rdp import compute_epsilon

    require_finite("repetitions", repetitions, "it is how many runs are expected")
    orders = ORDERS[_PLACES]
    # A random mechanism, drawn without looking at the data, is as private as the least private.
    one = np.max([rdp_curve(spent)[_PLACES] for spent in mechanisms], axis=0)
    deltas = [
        max(pld.delta_at(spent, math.log(order / (order - 1))) for spent in mechanisms)
        for order in orders
    ]
    curve = [
        best_of_many_rdp(order, rho, small, repetitions)
        for order, rho, small in zip(orders.tolist(), one.tolist(), deltas, strict=True)
    ]
    return float(compute_epsilon(orders.tolist(), curve, delta)[0])


def best_of_many_rdp(order: float, rho: float, delta: float, repetitions: float) -> float:
    """ρ at ``order`` of the best of Poisson many runs, each of ρ = ``rho`` at that order.

    Each run is also (log(order/(order - 1)), delta)-DP. Their theorem leaves out the first term,
    the chance that K is 0, which makes ours a little larger.
    """
    # log(e^-m + m·e^((λ-1)(ρ + m·δ))), without overflow.
    best = math.log(repetitions) + (order - 1) * (rho + repetitions * delta)
    return float(np.logaddexp(-repetitions, best)) / (order - 1)
