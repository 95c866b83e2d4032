"""The privacy loss of one noisy sum over a sampled cohort, as a discrete distribution.

Notation: q is the sampling rate; mu = sensitivity ÷ noise; P = (1 - q)·N(0, 1) + q·N(mu, 1) is the
round with one person and Q = N(0, 1) without; the loss is log(P/Q). A profile δ(ε) is the
hockey-stick divergence at e^ε. The claims made here are proved in docs/privacy.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpfedls.privacy.accounting.gaussian import Floats, gaussian_delta

TAIL = 9.5  # standard deviations on the grid unless told; the rest, 1e-21, counts as infinite loss
LOWEST_LOSS = 60.0  # losses below minus this, of total mass under e^-60, are rounded up to it
PROFILE_MARGIN = 1e-9  # profiles are raised by this share: rounding in them and in the dots is less
ZERO_MARGIN = 1e-11  # and this is added at loss zero, whose mass is what the others leave of 1


class LossPmf(NamedTuple):
    """Masses at losses interval·(lowest, lowest + 1, …), and the mass of infinite loss."""

    interval: float
    lowest: int
    masses: Floats
    infinite: float


def removed_delta(epsilon: Floats, rate: float, mu: float) -> Floats:
    """δ(ε) of P against Q for ε >= 0: q·δ_Gauss(log(1 + (e^ε - 1)/q))."""
    # The logarithm is written so that neither a huge nor a tiny ε loses digits.
    inner = epsilon + np.log1p(-np.expm1(-epsilon) * (1 - rate) / rate)
    return rate * gaussian_delta(inner, mu)


def added_delta(epsilon: Floats, rate: float, mu: float) -> Floats:
    """δ(ε) of Q against P for ε >= 0: c·δ_Gauss(log(e^ε·q/c)) with c = 1 - e^ε·(1 - q), or 0."""
    share = rate - (1 - rate) * np.expm1(np.minimum(epsilon, 700.0))
    safe = np.maximum(share, 1e-300)
    delta = safe * gaussian_delta(epsilon + math.log(rate) - np.log(safe), mu)
    return np.where(share > 0, delta, 0.0)


def largest_loss(rate: float, mu: float, tail: float = TAIL) -> float:
    """The loss beyond which less than Φ(-tail) of P lies: that at the output mu + tail."""
    gaussian = mu * mu / 2 + tail * mu
    return gaussian + math.log(rate + (1 - rate) * math.exp(-gaussian))


def largest_reversed_loss(rate: float, mu: float, tail: float = TAIL) -> float:
    """The loss of (Q, P) beyond which less than Φ(-tail) of Q lies: that at the output -tail."""
    return -math.log1p(rate * math.expm1(-tail * mu - mu * mu / 2))


def grid(largest: float, interval: float) -> Floats:
    """Losses 0, interval, 2·interval, … up to the first at or beyond ``largest``."""
    last = max(2, math.ceil(largest / interval))
    return np.linspace(0.0, interval * last, last + 1)


def connect_the_dots(deltas: Floats, interval: float) -> Floats:
    """Masses at all but the first of equally spaced losses, from δ at each of them.

    Doroshenko et al. 2022, Algorithm 1: with these masses, and the last δ as that of infinite
    loss, δ is met at every dot and nowhere undercut.
    """
    steps = np.diff(np.minimum.accumulate(deltas))
    following = np.append(steps[1:], 0.0)
    return np.maximum((steps - following * math.exp(-interval)) / math.expm1(-interval), 0.0)


def two_sided_pmf(deltas: Floats, reversed_deltas: Floats, interval: float) -> LossPmf:
    """The discrete loss of a pair from its profile at ε >= 0 and that of the pair turned round.

    Turning a pair round turns the sign of a loss l and weighs it by e^-l, which gives the negative
    losses without the cancellation in 1 - δ; what is left lies at zero. Guarantees: whatever
    rounding did, no mass is below that of a pair which dominates the profile.
    """
    above = connect_the_dots(deltas * (1 + PROFILE_MARGIN), interval)
    below = connect_the_dots(reversed_deltas * (1 + PROFILE_MARGIN), interval)
    below = below * np.exp(-interval * np.arange(1, len(below) + 1))
    kept = min(len(below), math.ceil(LOWEST_LOSS / interval))
    below[kept - 1] = below[kept - 1 :].sum()
    infinite = float(deltas[-1]) * (1 + PROFILE_MARGIN)
    at_zero = max(0.0, 1.0 - infinite - above.sum() - below[:kept].sum()) + ZERO_MARGIN
    masses = np.concatenate([below[:kept][::-1], [at_zero], above])
    return LossPmf(interval, -kept, masses, infinite)


def poisson_pmfs(rate: float, mu: float, interval: float, tail: float = TAIL) -> list[LossPmf]:
    """Discrete upper bounds on the loss of (P, Q), one person removed, and of (Q, P), one added."""
    removed = removed_delta(grid(largest_loss(rate, mu, tail), interval), rate, mu)
    added = added_delta(grid(largest_reversed_loss(rate, mu, tail), interval), rate, mu)
    return [two_sided_pmf(removed, added, interval), two_sided_pmf(added, removed, interval)]
