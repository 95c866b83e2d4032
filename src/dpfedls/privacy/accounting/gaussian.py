"""The privacy profile of the Gaussian mechanism and its two inverses, with all their digits.

N(mu, 1) against N(0, 1) has δ = Φ(-x) - e^ε·Φ(-x - mu) at ε = mu·(x + mu/2) (Balle and Wang 2018,
Theorem 8). Since e^ε·φ(x + mu) = φ(x), that is φ(x)·(m(x) - m(x + mu)) with Mills' ratio
m(x) = Φ(-x)/φ(x): no huge number meets another, whatever mu is.
"""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr

Floats: TypeAlias = NDArray[np.float64]

SMALL = 0.1  # below it m(x) - m(x + mu) is integrated, since a difference would lose digits
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(6)
FARTHEST = 38.0  # Φ(-38) is 1e-316: no δ that a float can hold lies further out
SMALLEST_DELTA = 1e-300  # below it δ and its logarithm lose digits
UPWARD = 1e-9  # what is added to a root, relatively; brentq and the profile err by 1e-11


def mills_ratio(x: Floats) -> Floats:
    """Φ(-x)/φ(x), for x > -37."""
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))


def tail_delta(x: Floats, mu: float) -> Floats:
    """δ at ε = mu·(x + mu/2), for ε >= 0; relative error below 1e-11 where δ > 1e-300."""
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    if mu < SMALL:  # m' = x·m - 1
        nodes = x[..., None] + mu * (1 + POINTS) / 2
        return density * mu / 2 * ((1 - nodes * mills_ratio(nodes)) @ WEIGHTS)
    right = np.maximum(x, 0.0)
    far = density * (mills_ratio(right) - mills_ratio(right + mu))
    return np.where(x > 0, far, ndtr(-x) - density * mills_ratio(np.maximum(x + mu, 0.0)))


def gaussian_delta(epsilon: Floats, mu: float) -> Floats:
    """δ(ε) of N(mu, 1) against N(0, 1), for ε >= 0."""
    return tail_delta(epsilon / mu - mu / 2, mu)


def gaussian_delta_above(epsilon: float, mu: float) -> float:
    """δ(ε) of one ε, rounded up."""
    return min(1.0, float(gaussian_delta(np.array(epsilon), mu)) * (1 + UPWARD) + SMALLEST_DELTA)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε that mu-GDP grants at ``delta``, rounded up."""
    lowest = max(-mu / 2, -9.0)
    if _log_delta(lowest, mu) <= math.log(delta):
        return mu * (lowest + mu / 2)
    x = cast(float, brentq(lambda x: _log_delta(x, mu) - math.log(delta), lowest, FARTHEST))
    return mu * (x + mu / 2 + UPWARD * (1 + abs(x)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian is exactly (ε, δ)-DP, for any ε > 0."""

    def mu_at(x: float) -> float:  # the root of mu²/2 + x·mu = ε
        root = math.sqrt(x * x + 2 * epsilon)
        return 2 * epsilon / (x + root) if x > 0 else root - x

    excess = lambda x: _log_delta(x, mu_at(x)) - math.log(delta)  # noqa: E731
    return mu_at(cast(float, brentq(excess, -9.0, FARTHEST)))


def _log_delta(x: float, mu: float) -> float:
    return math.log(max(float(tail_delta(np.array(x), mu)), 1e-320))
