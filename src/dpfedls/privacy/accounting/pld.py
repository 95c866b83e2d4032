"""Composition by privacy loss distributions (PLD): the default, and the least bound we can prove.

Poisson sampling holds under add-or-remove-one, fixed-size sampling under replace-one. A round
becomes a discrete loss that rounds towards more (loss_pmf.py, fixed_size.py), rounds are composed
with every rounding charged (compose.py), and where another proven bound is smaller, it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from dpfedls.privacy.accounting.compose import Composed, compose
from dpfedls.privacy.accounting.fixed_size import fixed_size_pmf
from dpfedls.privacy.accounting.gaussian import gaussian_delta_above, gaussian_epsilon
from dpfedls.privacy.accounting.loss_pmf import LossPmf, largest_loss, poisson_pmfs
from dpfedls.privacy.accounting.rdp import rdp_delta, rdp_epsilon
from dpfedls.privacy.accounting.spent import Spent, merged
from dpfedls.privacy.accounting.tilting import Shape, choose, rough_rdp_epsilon

LARGEST_LOSS = 1e6  # a round that can lose more is bounded without a grid
DECADES = 4  # one composition serves all δ in so many powers of ten


def epsilons_at(spent: Spent, deltas: Sequence[float]) -> list[float]:
    """ε at each δ; never larger at a larger δ."""
    rounds = merged(spent)
    if not rounds:
        return [0.0] * len(deltas)
    if any(event.noise_multiplier == 0 for event, _ in rounds):
        return [math.inf] * len(deltas)
    found: dict[float, float] = {}
    for decade, some in itertools.groupby(sorted(set(deltas)), decades):
        bound = bound_for(rounds, decade)
        found |= {delta: bound.epsilon(delta) for delta in some}
    # What holds at one δ holds at every larger one.
    running = itertools.accumulate(found.values(), min)
    least = dict(zip(found, running, strict=True))
    return [least[delta] for delta in deltas]


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
    least = 1.0
    for decade in range(300 // DECADES):
        least = min(least, bound_for(rounds, decade).delta(epsilon))
        if decades(max(least, 1e-300)) <= decade:
            break
    return least


def decades(delta: float) -> int:
    """Which composition serves this δ: 0 for 1e-4 and more, 1 for 1e-8 and more, and so on."""
    return math.floor(-math.log10(delta) / DECADES)


class Bound(NamedTuple):
    """All proven bounds on these rounds for δ within some powers of ten; the least one counts."""

    rounds: Spent
    directions: list[Composed]  # none where there is no grid
    exact: bool  # whether the grid is as fine as wanted

    def epsilon(self, delta: float) -> float:
        """The least ε, at this δ, of the composed loss, the unsampled Gaussian and RDP."""
        gaussian = gaussian_epsilon(total_mu(self.rounds), delta)
        composed = max((one.epsilon(delta) for one in self.directions), default=gaussian)
        least = min(gaussian, composed)
        # Where the window missed ε (δ below 1e-50 or so) the composed loss says infinity.
        fine = self.exact and composed < math.inf
        if fine or rough_rdp_epsilon(shapes_of(self.rounds), delta) > least:
            return least
        return min(least, rdp_epsilon(self.rounds, delta))

    def delta(self, epsilon: float) -> float:
        """The least δ at this ε, likewise."""
        least = gaussian_delta_above(epsilon, total_mu(self.rounds))
        if self.directions:
            least = min(least, max(one.delta(epsilon) for one in self.directions))
        return least if self.exact else min(least, rdp_delta(self.rounds, epsilon))


def bound_for(rounds: Spent, decade: int) -> Bound:
    """The bounds for δ between 10^(-DECADES·decade) and 10^-DECADES of it.

    Where the grid is as fine as wanted its ε is within 1e-4, and RDP, which loses more than that in
    its conversion, need not be asked; where the grid is coarse or absent, RDP may be smaller.
    """
    if all(event.rate == 1 for event, _ in rounds):
        return Bound(rounds, [], exact=True)  # one Gaussian, whose profile is closed form
    shapes = shapes_of(rounds)
    smallest = 10.0 ** (-DECADES * (decade + 1))
    # Of each round's loss, Φ(-tail) at most counts as infinite: a millionth of δ in all.
    tail = math.sqrt(2 * math.log(1e6 * sum(shape.times for shape in shapes) / smallest))
    if any(largest_loss(shape.rate, shape.mu, tail) > LARGEST_LOSS for shape in shapes):
        return Bound(rounds, [], exact=False)
    symmetric = rounds[0][0].sampler.relation == "replace-one"
    middle = math.log(smallest) + DECADES / 2 * math.log(10)
    interval, tilts, coarse = choose(shapes, middle, tail, symmetric=symmetric)
    losses = [one_round(shape, interval, tail, symmetric=symmetric) for shape in shapes]
    directions = [
        compose([(pmf, s.times) for pmf, s in zip(pmfs, shapes, strict=True)], tilt)
        for pmfs, tilt in zip(zip(*losses, strict=True), tilts, strict=True)
    ]
    return Bound(rounds, directions, exact=not coarse)


def shapes_of(rounds: Spent) -> list[Shape]:
    """The rounds as the numerics see them; T Gaussians without sampling are one with mu·√T."""
    return [
        Shape(event.rate, 1 / event.noise_over_sensitivity, count)
        if event.rate < 1
        else Shape(1.0, math.sqrt(count) / event.noise_over_sensitivity, 1)
        for event, count in rounds
    ]


def one_round(shape: Shape, interval: float, tail: float, *, symmetric: bool) -> list[LossPmf]:
    """The loss of one round in each direction: one for replace-one, two for add-or-remove-one."""
    if symmetric:
        return [fixed_size_pmf(shape.rate, shape.mu, interval, tail)]
    if shape.rate == 1:
        return [fixed_size_pmf(1.0, shape.mu, interval, tail)] * 2  # the same both ways
    return poisson_pmfs(shape.rate, shape.mu, interval, tail)


def total_mu(rounds: Spent) -> float:
    """All rounds as if everybody took part in each: together they are mu-GDP.

    mu² = Σ 1/(noise ÷ sensitivity)² (Dong, Roth, Su 2022, Corollary 3.3); sampling only helps.
    """
    return math.sqrt(sum(count / event.noise_over_sensitivity**2 for event, count in rounds))
