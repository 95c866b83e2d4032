"""Composition by Rényi divergences (RDP), on dp-accounting: soundly, and as the paper did it."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from dpfedls.privacy.accounting.fixed_rdp import fixed_size_rdp
from dpfedls.privacy.accounting.poisson_rdp import poisson_rdp
from dpfedls.privacy.accounting.spent import Spent
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import FixedSizeSampling

FRACTIONS = [1 + k / 10 for k in range(1, 100)]
LARGE = [72, 80, 96, 112, 128, 160, 192, 224, 257, 320, 384, 448, 512, 768, 1024, 2048]
ORDERS = np.array([*FRACTIONS, *range(11, 65), *LARGE])
WHOLE = [*range(2, 65), *LARGE]
TRUNCATED = 1e-11  # its series for fractional orders stops at e^-30 of a term, which ÷ 0.1 is 1e-12
KNOTS = [*range(2, 33), *range(36, 65, 4), 80, 96, 128, 160, 257, 384, 512, 1024, 2048]  # slower


def rdp_epsilon(spent: Spent, delta: float) -> float:
    """ε of the noise really added, by today's conversion (Canonne, Kamath, Steinke 2020)."""
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(ORDERS.tolist(), rdp_curve(spent).tolist(), delta)[0])


def rdp_delta(spent: Spent, epsilon: float) -> float:
    """δ of the noise really added, by the same conversion."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    return float(compute_delta(ORDERS.tolist(), rdp_curve(spent).tolist(), epsilon)[0])


def paper_epsilon(spent: Spent, delta: float) -> float:
    """ε as published: the multiplier read as noise ÷ sensitivity, ε = ρ + log(1/δ)/(α - 1).

    Under replace-one this is the ε of twice the noise that the multiplier stands for elsewhere.
    """
    curve = sum(count * _rdp(event, event.noise_multiplier) for event, count in spent)
    return float(np.min(curve + math.log(1 / delta) / (ORDERS - 1)))


def rdp_curve(spent: Spent) -> NDArray[np.float64]:
    """ρ of all rounds at ORDERS.

    The bound for fixed-size sampling can exceed the Gaussian's own ρ = α/(2z²). Sampling never
    hurts (Rényi divergence is quasi-convex), so the smaller of the two holds at each order.
    """
    curve = np.zeros_like(ORDERS)
    for event, count in spent:
        noise = event.noise_over_sensitivity
        curve += count * np.minimum(_rdp(event, noise), ORDERS / (2 * noise**2))
    return curve


@functools.lru_cache(maxsize=16)  # several δ are often asked of one mechanism
def _rdp(event: RoundEvent, noise_over_sensitivity: float) -> NDArray[np.float64]:
    """ρ of one round at ORDERS (Mironov et al. 2019; Wang, Balle, Kasiviswanathan 2019).

    The RDP accountant of dp-accounting reads a multiplier as noise ÷ *sensitivity*, its PLD
    accountant as noise ÷ norm bound (google/differential-privacy issues 378 and 464): this is the
    one place where we hand it a multiplier. At large noise it loses digits: for fixed-size cohorts
    it says 0 at last, for Poisson cohorts less than 0. Whole orders are computed here, and the
    fractional ones of Poisson cohorts are charged for its truncated series.
    """
    import dp_accounting

    if isinstance(event.sampler, FixedSizeSampling):
        return _by_chords(KNOTS, fixed_size_rdp(event.rate, noise_over_sensitivity, KNOTS))
    gaussian = dp_accounting.GaussianDpEvent(noise_over_sensitivity)
    poisson = dp_accounting.PoissonSampledDpEvent(event.rate, gaussian)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    chords = _by_chords(WHOLE, poisson_rdp(event.rate, noise_over_sensitivity, WHOLE))
    library = _library_rdp(poisson, relation, ORDERS.tolist()) + TRUNCATED
    return np.where(np.isin(ORDERS, WHOLE), chords, np.minimum(chords, library))


def _by_chords(orders: Sequence[int], found: NDArray[np.float64]) -> NDArray[np.float64]:
    """ρ at ORDERS from some: (α - 1)·ρ(α) is convex, 0 at α = 1, so no chord is below it."""
    knots = np.array([0, *(order - 1 for order in orders)])
    return np.interp(ORDERS - 1, knots, knots * np.array([0.0, *found])) / (ORDERS - 1)


def _library_rdp(event: object, relation: object, orders: Sequence[float]) -> NDArray[np.float64]:
    from dp_accounting.rdp import RdpAccountant

    with _without_warnings():
        return np.asarray(RdpAccountant(orders, relation).compose(event).rdp)  # pyright: ignore[reportArgumentType]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence "failed to converge": such an order counts as infinite, which is sound."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
