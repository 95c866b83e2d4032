"""The ε against each observer, and the profile of rounds whose cohorts are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpfedls import FixedSizeSampling, InputError, PoissonSampling
from dpfedls.privacy.accountants import epsilon
from dpfedls.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpfedls.privacy.accounting.known_cohorts import known_cohorts_delta, known_cohorts_epsilon
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.observers import Nodes, observers

REVEALED = Nodes(reveal_cohorts=True)


def fixed(clients, cohort, noise):
    sampler = FixedSizeSampling(cohort=cohort)
    return RoundEvent(sampler=sampler, num_clients=clients, noise_multiplier=noise)


@pytest.mark.parametrize(
    ("event", "rounds", "releases", "known"),
    [(fixed(2000, 100, 1.5), 200, 8.05, 29.5), (fixed(1000, 50, 2.693), 30, 0.82, 4.5)],
)
def test_who_knows_the_cohorts_meets_a_far_larger_epsilon(event, rounds, releases, known):
    delta = event.num_clients**-1.1
    assert epsilon([(event, rounds)], delta) == pytest.approx(releases, abs=0.01)
    assert known_cohorts_epsilon(event, rounds, delta) == pytest.approx(known, abs=0.05)


def test_the_profile_is_that_of_all_patterns_of_participation():
    """Every pattern of four rounds, weighted by its probability; no simulation in between."""
    event, rounds = fixed(10, 3, 1.4), 4
    for cost in (0.1, 1.0, 3.0):
        expected = sum(
            math.prod(0.3 if took_part else 0.7 for took_part in pattern)
            * float(gaussian_delta(np.array(cost), math.sqrt(sum(pattern)) * 2 / 1.4))
            for pattern in itertools.product((0, 1), repeat=rounds)
            if any(pattern)
        )
        assert known_cohorts_delta(event, rounds, cost) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("event", [fixed(2000, 100, 1.5), fixed(50, 1, 0.3), fixed(9, 9, 4.0)])
def test_the_bound_holds_and_is_tight(event, delta):
    """At its ε the exact δ is at most ours and above 0.99 of it; cutting rare counts is paid."""
    for rounds in (1, 7, 300):
        found = known_cohorts_epsilon(event, rounds, delta)
        if found == 0:
            assert known_cohorts_delta(event, rounds, 0.0) <= delta
            continue
        assert 0.99 * delta < known_cohorts_delta(event, rounds, found) <= delta
        always = gaussian_epsilon(math.sqrt(rounds) * 2 / event.noise_multiplier, delta)
        assert found <= always * 1.01


def test_everybody_drawn_always_is_the_gaussian_itself():
    found = known_cohorts_epsilon(fixed(7, 7, 3.0), 20, 1e-4)
    assert found == pytest.approx(gaussian_epsilon(math.sqrt(20) * 2 / 3.0, 1e-4), rel=1e-3)
    assert known_cohorts_epsilon(fixed(7, 7, 0.0), 20, 1e-4) == math.inf
    assert known_cohorts_epsilon(fixed(7, 3, 1.0), 0, 1e-4) == 0


def test_fixed_size_rows_rise_with_what_an_observer_knows():
    rows = observers(fixed(1000, 50, 2.693), 30, 1e-3, REVEALED)
    costs = [row["epsilon"] for row in rows]
    assert costs == sorted(costs)
    assert costs[0] < costs[1] < 1.02 * costs[0]  # one person less hides almost as well
    assert costs[2] > 4 * costs[0]
    assert costs[3] == math.inf


def test_poisson_rows_are_one_epsilon():
    event = RoundEvent(sampler=PoissonSampling(rate=0.1), num_clients=60, noise_multiplier=1.0)
    costs = [row["epsilon"] for row in observers(event, 6, 1e-3, Nodes())]
    assert costs[0] == costs[1] == costs[2] == epsilon([(event, 6)], 1e-3)
    Nodes().check(event)
    assert len(observers(event, 6, 1e-3, None)) == 2


def test_poisson_given_what_all_others_see_is_no_worse():
    """For each set of others that was drawn, the divergence itself, integrated on a grid."""
    q, z, cost = 0.3, 1.2, 0.8
    grid = np.linspace(-15, 15, 200_001)
    density = lambda mean: np.exp(-((grid - mean) ** 2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi))  # noqa: E731
    event = RoundEvent(sampler=PoissonSampling(rate=q), num_clients=4, noise_multiplier=z)
    bound = max(_deltas(density, 0.0, q, cost, grid))
    for others in ((), (1.0,), (1.0, -0.4), (1.0, -0.4, -1.0)):
        assert max(_deltas(density, sum(others), q, cost, grid)) == pytest.approx(bound, rel=1e-6)
    assert epsilon([(event, 1)], bound) == pytest.approx(cost, rel=1e-3)


def _deltas(density, centre, q, cost, grid):
    with_, without = (1 - q) * density(centre) + q * density(centre + 1.0), density(centre)
    step = grid[1] - grid[0]
    for p, r in ((with_, without), (without, with_)):
        yield float(np.maximum(p - math.exp(cost) * r, 0).sum() * step)


def test_fixed_size_is_refused_on_nodes_without_a_word():
    with pytest.raises(InputError, match="reveal_cohorts"):
        Nodes().check(fixed(10, 2, 1.0))
    REVEALED.check(fixed(10, 2, 1.0))
    with pytest.raises(InputError, match="most_samples"):
        Nodes(most_samples=0)
