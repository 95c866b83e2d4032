"""Composition by privacy loss distributions (PLD): the tight accountant, for both samplings.

Poisson sampling holds under add-or-remove-one, fixed-size sampling under replace-one. A round
becomes a discrete loss that rounds towards more (loss_pmf.py, fixed_size.py); dp-accounting
composes. So the result is an upper bound, up to the rounding of floating-point numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dpfedls.errors import InputError
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.fixed_size import fixed_size_pmf
from dpfedls.privacy.loss_pmf import largest_loss, poisson_pmfs
from dpfedls.sampling import FixedSizeSampling

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Spent: TypeAlias = Sequence[tuple[RoundEvent, int]]

STEPS_PER_DEVIATION = 64  # grid steps to one standard deviation of a round's loss; ε to 1e-4
STEPS_OF_ONE_ROUND = 512  # affordable where nothing is composed
MOST_STEPS = 2**18  # of a composed grid; beyond it the grid is coarsened
LARGEST_LOSS = 1e6  # a round that can lose more is bounded without a grid


def merged(spent: Spent) -> list[tuple[RoundEvent, int]]:
    """Equal events counted together, absent ones dropped, mixed relations refused."""
    counts: Counter[RoundEvent] = Counter()
    for event, count in spent:
        if count < 0:
            raise InputError(f"a number of rounds must be >= 0, got {count}; use 0 for none")
        counts[event] += count
    rounds = [(event, count) for event, count in counts.items() if count]
    if len({event.sampler.relation for event, _ in rounds}) > 1:
        raise InputError(
            "Poisson and fixed-size rounds cannot share one ε: the first holds between populations "
            "that differ by one client more or fewer, the second by one client replaced; "
            "account for them apart, or use one sampler throughout"
        )
    return rounds


def gaussian_bound(spent: Spent, delta: float) -> float:
    """ε as if everybody took part every round: crude, closed form, finite for any noise.

    T rounds are together mu-GDP with mu² = Σ 1/(noise ÷ sensitivity)² (Dong, Roth, Su 2022,
    Corollary 3.3), δ(ε) <= Φ(mu/2 - ε/mu), and Φ(-x) <= exp(-x²/2). Sampling only helps.
    """
    mu = math.sqrt(sum(count / event.noise_over_sensitivity**2 for event, count in spent))
    return mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))


def epsilons_at(spent: Spent, deltas: Sequence[float]) -> list[float]:
    """ε at each δ, from one composition."""
    rounds = merged(spent)
    if not rounds:
        return [0.0] * len(deltas)
    if any(event.noise_multiplier == 0 for event, _ in rounds):
        return [math.inf] * len(deltas)
    composed = compose(rounds)
    bounds = [gaussian_bound(rounds, delta) for delta in deltas]
    if composed is None:
        return bounds
    return [min(composed.get_epsilon_for_delta(d), b) for d, b in zip(deltas, bounds, strict=True)]


def epsilon_at(spent: Spent, delta: float) -> float:
    """ε at one δ."""
    return epsilons_at(spent, [delta])[0]


def delta_at(spent: Spent, epsilon: float) -> float:
    """δ at one ε."""
    rounds = merged(spent)
    if not rounds:
        return 0.0
    if any(event.noise_multiplier == 0 for event, _ in rounds):
        return 1.0
    composed = compose(rounds)
    return 1.0 if composed is None else min(1.0, float(composed.get_delta_for_epsilon(epsilon)))


def compose(spent: Spent) -> PrivacyLossDistribution | None:
    """The PLD of all rounds together; None where a round can lose too much for a grid."""
    # Full participation is a plain Gaussian, and T of them are one with noise ÷ √T, exactly.
    shapes = [
        (event.rate, 1 / event.noise_over_sensitivity, count)
        if event.rate < 1
        else (1.0, math.sqrt(count) / event.noise_over_sensitivity, 1)
        for event, count in spent
    ]
    if any(largest_loss(rate, mu) > LARGEST_LOSS for rate, mu, _ in shapes):
        return None
    interval = grid_interval(shapes)
    fixed = isinstance(spent[0][0].sampler, FixedSizeSampling)
    total = None
    for rate, mu, count in shapes:
        part = one_round(rate, mu, interval, fixed=fixed)
        part = part.self_compose(count) if count > 1 else part
        total = part if total is None else total.compose(part)
    return total


def one_round(rate: float, mu: float, interval: float, *, fixed: bool) -> PrivacyLossDistribution:
    """The PLD of one round; at full participation both samplings are the plain Gaussian."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    if fixed or rate == 1:
        return PrivacyLossDistribution(fixed_size_pmf(rate, mu, interval))
    return PrivacyLossDistribution(*poisson_pmfs(rate, mu, interval))


def grid_interval(scales: Sequence[tuple[float, float, int]]) -> float:
    """One grid for all rounds: fine against the narrowest loss, yet of bounded total length."""
    moments = [loss_deviation(rate, mu) for rate, mu, _ in scales]
    length = sum(
        composed_length(largest_loss(rate, mu), deviation, count)
        for (rate, mu, count), deviation in zip(scales, moments, strict=True)
    )
    steps = STEPS_OF_ONE_ROUND if len(scales) == scales[0][2] == 1 else STEPS_PER_DEVIATION
    return max(min(moments) / steps, length / MOST_STEPS)


def loss_deviation(rate: float, mu: float) -> float:
    """Root mean square of one round's loss log(1 - q + q·e^(mu·x - mu²/2)), x standard normal."""
    x = np.linspace(-8.0, 8.0, 321)
    weight = np.exp(-x * x / 2)
    loss = np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + mu * (x - mu / 2))
    return math.sqrt(float((weight * loss**2).sum() / weight.sum()))


def composed_length(largest: float, deviation: float, count: int) -> float:
    """How far the composed grid will reach, by the Chernoff bounds dp-accounting truncates with."""
    if count == 1:
        return 2 * largest
    orders = np.arange(1, 21) / (2 * largest)
    reach = count * orders * deviation**2 / 2 + 36 / orders
    return 2 * float(min(reach.min(), count * largest))
