"""The privacy of sampled rounds against whoever knows when a person took part.

Sampling hides nothing from them. A person is drawn in k ~ Binomial(T, q) of T rounds, whatever
anybody's data is, and k Gaussian rounds are one of √k·mu: δ(ε) = E_k[δ_Gauss(ε; √k·mu)], exactly.
The argument is in docs/privacy.md.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from dpfedls.privacy.accounting.gaussian import UPWARD, gaussian_delta_above, gaussian_epsilon
from dpfedls.privacy.event import RoundEvent

_TAIL = 1e-3  # this share of δ is left for counts k too rare to look at


def known_cohorts_delta(event: RoundEvent, rounds: int, epsilon: float, rare: float = 0.0) -> float:
    """δ(ε) of so many rounds, rounded up; counts beyond probability ``rare`` are charged whole."""
    mu = 1 / event.noise_over_sensitivity
    first, last = _likely(event.rate, rounds, rare)
    counts = np.arange(max(first, 1), last + 1)
    deltas = [gaussian_delta_above(epsilon, mu * math.sqrt(k)) for k in counts.tolist()]
    within = float(binom.pmf(counts, rounds, event.rate) @ np.array(deltas))
    # Of counts below the first no more is charged than of the first, since δ rises with k.
    below = float(binom.cdf(first - 1, rounds, event.rate)) * (deltas[0] if deltas else 0.0)
    above = float(binom.sf(last, rounds, event.rate))
    return min(1.0, (within + below + above) * (1 + UPWARD))


def known_cohorts_epsilon(event: RoundEvent, rounds: int, delta: float) -> float:
    """The least ε of so many rounds at ``delta``, rounded up; infinite without noise."""
    if rounds == 0:
        return 0.0
    if event.noise_multiplier == 0:
        return math.inf
    rare = _TAIL * delta

    def excess(epsilon: float) -> float:
        return math.log(known_cohorts_delta(event, rounds, epsilon, rare) / delta)

    # Nobody takes part more often than the rarest count looked at, so its ε bounds that of all.
    mu = math.sqrt(max(_likely(event.rate, rounds, rare)[1], 1)) / event.noise_over_sensitivity
    most = gaussian_epsilon(mu, delta * (1 - 2 * _TAIL))
    if excess(0.0) <= 0:
        return 0.0
    root = cast(float, brentq(excess, 0.0, most * (1 + UPWARD)))
    return min(root * (1 + UPWARD) + UPWARD, most)


def _likely(rate: float, rounds: int, rare: float) -> tuple[int, int]:
    """The least and the largest count but for probability ``rare`` on either side."""
    if rare == 0:
        return 0, rounds
    return int(binom.ppf(rare, rounds, rate)), int(binom.isf(rare, rounds, rate))
