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
from dpfedls.privacy.accounting.fixed_size import fixed_size_pmf
from dpfedls.privacy.accounting.loss_pmf import Floats, largest_loss, poisson_pmfs
from dpfedls.privacy.event import RoundEvent

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

Spent: TypeAlias = Sequence[tuple[RoundEvent, int]]

STEPS_PER_DEVIATION = 64  # grid steps to one standard deviation of a round's loss; ε to 1e-4
STEPS_OF_ONE_ROUND = 512  # affordable where nothing is composed
MOST_STEPS = 2**18  # of a composed grid; beyond it the grid is coarsened
LARGEST_LOSS = 1e6  # a round that can lose more is bounded without a grid
SMALLEST_DELTA = 1e-12  # below it the rounding of Fourier transforms could outweigh δ
NODES = np.linspace(-8.0, 8.0, 321)  # a quadrature for the standard normal
NORMAL = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()


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
    pmfs = compose(rounds)
    return [min(worst_epsilon(pmfs, delta), gaussian_bound(rounds, delta)) for delta in deltas]


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
    pmfs = compose(rounds)
    return min(1.0, max(float(p.get_delta_for_epsilon(epsilon)) for p in pmfs)) if pmfs else 1.0  # pyright: ignore[reportArgumentType]


def worst_epsilon(pmfs: Sequence[DensePLDPmf], delta: float) -> float:
    """The larger ε of all directions; infinite where there is no grid, or δ is beneath it."""
    if delta < SMALLEST_DELTA:
        return math.inf

    def one(pmf: DensePLDPmf) -> float:
        try:
            return pmf.get_epsilon_for_delta(delta)
        except OverflowError:  # it walked down to losses below -709, so ε is not above 0
            return 0.0

    return max((one(pmf) for pmf in pmfs), default=math.inf)


def compose(spent: Spent) -> list[DensePLDPmf]:
    """The loss of all rounds together in each direction; none if it is too large for a grid."""
    # Full participation is a plain Gaussian, and T of them are one with noise ÷ √T, exactly.
    shapes = [
        (event.rate, 1 / event.noise_over_sensitivity, count)
        if event.rate < 1
        else (1.0, math.sqrt(count) / event.noise_over_sensitivity, 1)
        for event, count in spent
    ]
    if any(largest_loss(rate, mu) > LARGEST_LOSS for rate, mu, _ in shapes):
        return []
    interval = grid_interval(shapes)
    symmetric = spent[0][0].sampler.relation == "replace-one"
    total: list[DensePLDPmf] = []
    for rate, mu, count in shapes:
        one = one_round(rate, mu, interval, symmetric=symmetric)
        many = [pmf.self_compose(count) if count > 1 else pmf for pmf in one]
        total = [a.compose(b) for a, b in zip(total, many, strict=True)] if total else many
    return total


def one_round(rate: float, mu: float, interval: float, *, symmetric: bool) -> list[DensePLDPmf]:
    """The loss of one round in each direction: one for replace-one, two for add-or-remove-one."""
    if symmetric:
        return [fixed_size_pmf(rate, mu, interval)]
    if rate == 1:
        return [fixed_size_pmf(1.0, mu, interval)] * 2  # the plain Gaussian, the same both ways
    return poisson_pmfs(rate, mu, interval)


def grid_interval(shapes: Sequence[tuple[float, float, int]]) -> float:
    """One grid for all (rate, mu, count): fine against the narrowest loss, of bounded length."""
    steps = STEPS_OF_ONE_ROUND if len(shapes) == shapes[0][2] == 1 else STEPS_PER_DEVIATION
    narrowest = min(loss_deviation(rate, mu) for rate, mu, _ in shapes)
    length = sum(composed_length(*shape) for shape in shapes)
    return max(narrowest / steps, length / MOST_STEPS)


def loss(x: Floats, rate: float, mu: float) -> Floats:
    """One round's privacy loss at output x, log(1 - q + q·e^(mu·x - mu²/2))."""
    without = math.log1p(-rate) if rate < 1 else -math.inf
    return np.logaddexp(without, math.log(rate) + mu * (x - mu / 2))


def loss_deviation(rate: float, mu: float) -> float:
    """Root mean square of one round's loss without the person, that is for a standard normal x."""
    return math.sqrt(float(NORMAL @ loss(NODES, rate, mu) ** 2))


def composed_length(rate: float, mu: float, count: int) -> float:
    """How far dp-accounting's composed grid will reach: it cuts by Chernoff bounds at 20 orders."""
    largest = largest_loss(rate, mu)
    if count == 1:
        return 2 * largest
    orders = np.arange(1, 21)[:, None] / (2 * largest)
    without, with_person = loss(NODES, rate, mu), loss(NODES + mu, rate, mu)
    moments = (1 - rate) * np.exp(orders * without) @ NORMAL
    moments += rate * np.exp(orders * with_person) @ NORMAL
    reach = (count * np.log(moments) + 36) / orders[:, 0]
    return 2 * min(float(reach.min()), count * largest)
