"""δ(ε) of composed rounds by Fourier inversion of the continuous loss: no grid, no pmf, no FFT.

For θ > 0, δ(ε) = 1/(2πi)·∫ M(s)^T·e^(-s·ε)/(s·(s + 1)) ds along Re s = θ, where M(s) is
E[e^(s·loss)] of one round; θ is the saddle point, so the relative error is T·1e-16 at every δ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq as typed_brentq

Floats = NDArray[np.float64]
brentq: Any = typed_brentq  # its stub knows only tuples


class Loss(NamedTuple):
    """One round's loss: values and weights of a quadrature."""

    values: Floats
    weights: Floats


def normal(x: Floats) -> Floats:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def pieces(low: float, high: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre nodes and weights on pieces of [low, high]."""
    points, weights = np.polynomial.legendre.leggauss(24)
    edges = np.linspace(low, high, 33)
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * points).ravel(), (half * weights).ravel()


def losses(rate: float, mu: float, kind: str) -> Loss:
    """Poisson sampling, one person removed or added; or fixed size, one replaced."""
    x, w = pieces(-13.0, mu + 13.0) if kind != "replaced" else pieces(mu / 2, mu + 13.0)
    density = (1 - rate) * normal(x) + rate * normal(x - mu)
    loss = np.log1p(rate * np.expm1(mu * (x - mu / 2)))
    if kind == "removed":
        return Loss(loss, w * density)
    if kind == "added":
        return Loss(-loss, w * normal(x))
    # Positive losses as for removal, negative ones their mirror image, the rest at zero.
    above = w * density
    both = np.concatenate([above, above * np.exp(-loss)])
    return Loss(np.concatenate([loss, -loss, [0.0]]), np.append(both, 1 - both.sum()))


def exact_delta(loss: Loss, rounds: int, epsilon: float) -> float:
    """δ(ε) of so many independent losses."""

    def cumulants(order: float) -> tuple[float, float, float]:
        tilted = loss.weights * np.exp(order * loss.values)
        mean = tilted @ loss.values / tilted.sum()
        return tilted.sum(), mean, tilted @ (loss.values - mean) ** 2 / tilted.sum()

    least = 0.3 / math.sqrt(rounds * cumulants(0.0)[2])
    most = 600 / float(np.abs(loss.values).max())
    slope = lambda order: rounds * cumulants(order)[1] - epsilon  # noqa: E731
    if slope(most) <= 0:  # not all rounds together can lose as much
        return 0.0
    order = float(brentq(slope, least, most, rtol=1e-3)) if slope(least) < 0 else least
    total, mean, variance = cumulants(order)
    deviation = math.sqrt(rounds * variance)
    step = 0.02 / deviation
    t = step * np.arange(round(40 / deviation / step) + 1)
    tilted = loss.weights * np.exp(order * loss.values) / total
    moments = np.array([tilted @ np.exp(1j * at * (loss.values - mean)) for at in t])
    phase = rounds * (np.log(moments) + 1j * t * mean) - 1j * t * epsilon
    s = order + 1j * t
    integrand = np.real(np.exp(phase) / (s * (s + 1)))
    integral = step * (integrand.sum() - integrand[0] / 2) / math.pi
    return float(integral * math.exp(rounds * math.log(total) - order * epsilon))


def exact_epsilon(rate: float, mu: float, kinds: list[str], rounds: int, delta: float) -> float:
    """The larger ε of all directions, each to nine digits."""

    def one(kind: str) -> float:
        loss = losses(rate, mu, kind)
        excess = lambda e: math.log(max(exact_delta(loss, rounds, e), 1e-320)) - math.log(delta)  # noqa: E731
        high = 1.0
        while excess(high) > 0:
            high *= 2
        return float(brentq(excess, high / 2 if high > 1 else 1e-3, high, rtol=1e-9))

    return max(one(kind) for kind in kinds)
