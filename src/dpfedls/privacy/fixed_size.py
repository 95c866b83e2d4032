"""The privacy loss of one round over a cohort of fixed size, under replace-one.

The cohort is a uniform subset, drawn without replacement; q = cohort ÷ clients; one person moves
the sum by at most 2·clip_norm, and mu is that ÷ noise. No library had a tight accountant for this
when it was written; why this one is an upper bound is proved in docs/privacy-accounting.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpfedls.privacy.loss_pmf import (
    Floats,
    connect_the_dots,
    dense_pmf,
    largest_loss,
    sampled_delta,
)

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

LOWEST_LOSS = 60.0  # losses below minus this, of total mass under e^-60, are rounded up to it


def fixed_size_delta(epsilon: Floats, rate: float, mu: float) -> Floats:
    """The largest δ(ε) of one round over all neighbours and both orders of them, any real ε.

    ε >= 0: q·δ_Gauss(log(1 + (e^ε - 1)/q)) (Balle, Barthe, Gaboardi 2018, Theorem 9).
    ε < 0: 1 - e^ε + e^ε·δ(-ε), since replace-one is symmetric.
    """
    size = np.abs(epsilon)
    delta = sampled_delta(size, rate, mu)
    return np.where(epsilon < 0, -np.expm1(-size) + np.exp(-size) * delta, delta)


def fixed_size_pmf(rate: float, mu: float, interval: float) -> DensePLDPmf:
    """A discrete privacy loss whose δ(ε) is nowhere below that of one round.

    Connect-the-dots gives the positive losses; a symmetric pair has p(-l) = e^-l·p(l), which gives
    the negative ones without the cancellation in 1 - δ; zero takes what is left, about 1 - q.
    """
    last = max(2, math.ceil(largest_loss(rate, mu) / interval))
    losses = interval * np.arange(last + 1)
    deltas = fixed_size_delta(losses, rate, mu)
    above = connect_the_dots(deltas, interval)
    below = above * np.exp(-losses[1:])
    kept = min(last, math.ceil(LOWEST_LOSS / interval))
    below[kept - 1] += below[kept:].sum()
    below = below[:kept]
    at_zero = max(0.0, 1.0 - deltas[-1] - above.sum() - below.sum())
    masses = np.concatenate([below[::-1], [at_zero], above])
    return dense_pmf(interval, -kept, masses, float(deltas[-1]))
