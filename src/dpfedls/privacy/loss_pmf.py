"""The privacy loss of one noisy sum over a sampled cohort, as a discrete distribution.

Notation: q is the sampling rate; mu = sensitivity ÷ noise; P = (1 - q)·N(0, 1) + q·N(mu, 1) and
Q = N(0, 1) are the round with and without one person; δ(ε) is the hockey-stick divergence of
(P, Q) at e^ε. The claims made here are proved in docs/privacy-accounting.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

Floats: TypeAlias = NDArray[np.float64]

TAIL = 9.5  # standard deviations on the grid; the rest, 1e-21, counts as infinite loss


def gaussian_delta(epsilon: Floats, mu: float) -> Floats:
    """δ(ε) of N(mu, 1) against N(0, 1), with all its digits even where it is 1e-300.

    Φ(mu/2 - ε/mu) - e^ε·Φ(-mu/2 - ε/mu): Balle and Wang 2018, Theorem 8.
    """
    log_upper = log_ndtr(mu / 2 - epsilon / mu)
    log_lower = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return np.exp(log_upper) * -np.expm1(np.minimum(log_lower - log_upper, 0.0))


def sampled_delta(epsilon: Floats, rate: float, mu: float) -> Floats:
    """δ(ε) of P against Q: q·δ_Gauss(log(1 + (e^ε - 1)/q)), or 1 - e^ε below log(1 - q)."""
    # Two ways to write the logarithm, so that neither a huge nor a tiny ε loses digits.
    above, below = np.maximum(epsilon, 0.0), np.minimum(epsilon, 0.0)
    least = np.nextafter(-1.0, 0.0)
    inner = above + np.log1p(-np.expm1(-above) * (1 - rate) / rate)
    inner += np.log1p(np.maximum(np.expm1(below) / rate, least))
    return np.maximum(rate * gaussian_delta(inner, mu), -np.expm1(below))


def largest_loss(rate: float, mu: float) -> float:
    """The loss beyond which less than q·Φ(-TAIL) of P lies: log(1 - q + q·e^(mu·x - mu²/2)) there."""
    gaussian = mu * mu / 2 + TAIL * mu
    return gaussian + math.log(rate + (1 - rate) * math.exp(-gaussian))


def smallest_loss(rate: float, mu: float) -> float:
    """The loss below which Φ(-TAIL) of Q and less of P lies."""
    return math.log1p(rate * math.expm1(-TAIL * mu - mu * mu / 2))


def connect_the_dots(deltas: Floats, interval: float) -> Floats:
    """Masses at all but the first of the losses, equally spaced, where δ is given.

    Doroshenko et al. 2022, Algorithm 1: with these masses, the last δ as infinite loss and the
    rest at or below the first loss, δ is met at every dot and nowhere undercut between them.
    """
    steps = np.diff(np.minimum.accumulate(deltas))
    inner = (steps[1:] - steps[:-1] * math.exp(interval)) / math.expm1(interval)
    return np.maximum(np.append(inner, steps[-1] / math.expm1(-interval)), 0.0)


def poisson_pmfs(rate: float, mu: float, interval: float) -> tuple[DensePLDPmf, DensePLDPmf]:
    """Discrete upper bounds on the loss of (P, Q), one person removed, and of (Q, P), one added.

    Turning a pair round turns the sign of a loss l and weighs it by e^-l; what Q has below the
    first loss, at most Φ(-TAIL), is then infinite.
    """
    first = math.floor(smallest_loss(rate, mu) / interval)
    last = max(first + 2, math.ceil(largest_loss(rate, mu) / interval))
    losses = interval * np.arange(first, last + 1)
    deltas = sampled_delta(losses, rate, mu)
    masses = connect_the_dots(deltas, interval)
    masses = np.append(max(0.0, 1.0 - deltas[-1] - masses.sum()), masses)
    removed = dense_pmf(interval, first, masses, float(deltas[-1]))
    added = dense_pmf(interval, -last, (masses * np.exp(-losses))[::-1], float(ndtr(-TAIL)))
    return removed, added


def dense_pmf(interval: float, first: int, masses: Floats, infinite: float) -> DensePLDPmf:
    """Masses at interval·(first, first + 1, …) and at infinity, for dp-accounting to compose."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    return DensePLDPmf(interval, first, masses, infinite, pessimistic_estimate=True)
