"""The privacy loss of one round over a cohort of fixed size, under replace-one.

The cohort is a uniform subset, drawn without replacement; q = cohort ÷ clients; one person moves
the sum by at most 2·clip_norm, and mu is that ÷ noise. No library had a tight accountant for this
when it was written; why this one is an upper bound is proved in docs/privacy.md.
"""

from __future__ import annotations

import numpy as np

from dpfedls.privacy.accounting.gaussian import Floats
from dpfedls.privacy.accounting.loss_pmf import (
    TAIL,
    LossPmf,
    grid,
    largest_loss,
    removed_delta,
    two_sided_pmf,
)


def fixed_size_delta(epsilon: Floats, rate: float, mu: float) -> Floats:
    """The largest δ(ε) of one round over all neighbours and both orders of them, any real ε.

    ε >= 0: q·δ_Gauss(log(1 + (e^ε - 1)/q)) (Balle, Barthe, Gaboardi 2018, Theorem 9).
    ε < 0: 1 - e^ε + e^ε·δ(-ε), since replace-one is symmetric.
    """
    size = np.abs(epsilon)
    delta = removed_delta(size, rate, mu)
    return np.where(epsilon < 0, -np.expm1(-size) + np.exp(-size) * delta, delta)


def fixed_size_pmf(rate: float, mu: float, interval: float, tail: float = TAIL) -> LossPmf:
    """A discrete privacy loss whose δ(ε) is nowhere below that of one round.

    One profile serves both orders of the neighbours: unlike add and remove, replacements of
    either kind may alternate from round to round, so two directions composed apart would not do.
    """
    deltas = fixed_size_delta(grid(largest_loss(rate, mu, tail), interval), rate, mu)
    return two_sided_pmf(deltas, deltas, interval)
