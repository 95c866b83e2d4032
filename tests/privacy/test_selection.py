from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpfedls import InputError
from dpfedls.privacy.accounting.selection import best_of_many_epsilon, best_of_many_rdp
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import PoissonSampling


def everybody(noise, rounds=1):
    """Rounds without sampling: one Gaussian release of noise ÷ √rounds."""
    sampler = PoissonSampling(rate=1.0)
    return [(RoundEvent(sampler=sampler, num_clients=100, noise_multiplier=noise), rounds)]


def gaussian_delta(noise, epsilon):
    mu = 1 / noise
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("noise", "repetitions", "delta"), [(2.0, 5.0, 1e-5), (6.0, 30.0, 1e-3)])
def test_the_price_is_the_one_computed_by_hand(noise, repetitions, delta):
    found = []
    for order in [1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64]:
        small = gaussian_delta(noise, math.log(order / (order - 1)))
        inside = (order - 1) * (order / (2 * noise**2) + repetitions * small)
        rho = math.log(math.exp(-repetitions) + repetitions * math.exp(inside)) / (order - 1)
        # Canonne, Kamath, Steinke 2020, Proposition 12.
        found.append(rho + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    assert best_of_many_epsilon([everybody(noise)], repetitions, delta) == pytest.approx(min(found))


def exact_rdp(order, shift, other, repetitions):
    """Rényi divergence of the largest of Poisson many N(shift, 1) from that of N(other, 1)."""

    def log_density(y, mean):
        return math.log(repetitions) + norm.logpdf(y - mean) - repetitions * norm.sf(y - mean)

    def integrand(y):
        return math.exp(order * log_density(y, shift) + (1 - order) * log_density(y, other))

    places = np.linspace(-12, 30, 43)
    parts = [quad(integrand, a, b)[0] for a, b in itertools.pairwise(places)]
    return math.log(math.exp(-repetitions) + sum(parts)) / (order - 1)  # with nothing, if K is 0


@pytest.mark.parametrize("repetitions", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("order", [2.0, 8.0])
def test_no_best_of_gaussians_exceeds_the_bound(order, repetitions):
    noise = 2.0
    rho = order / (2 * noise**2)
    bound = best_of_many_rdp(
        order, rho, gaussian_delta(noise, math.log(order / (order - 1))), repetitions
    )
    exact = [exact_rdp(order, *pair, repetitions) for pair in ((0, 1 / noise), (1 / noise, 0))]
    assert max(exact) <= bound
    if repetitions > 1:  # the cost of one run alone is no bound
        assert max(exact) > rho
    if (order, repetitions) == (8.0, 20.0):  # nor is it one without the δ of each run
        assert max(exact) > best_of_many_rdp(order, rho, 0.0, repetitions)


def test_a_random_mechanism_costs_what_the_least_private_of_them_costs():
    weak, strong = everybody(2.0), everybody(4.0)
    price = best_of_many_epsilon([strong, weak], 10.0, 1e-3)
    assert price == best_of_many_epsilon([weak], 10.0, 1e-3)
    assert price > best_of_many_epsilon([strong], 10.0, 1e-3)
    # Nothing but the whole run counts: four rounds of twice the noise are one round.
    same = best_of_many_epsilon([everybody(4.0, rounds=4)], 10.0, 1e-3)
    assert same == pytest.approx(price, rel=1e-6)


def test_more_repetitions_cost_more_and_none_is_refused():
    prices = [best_of_many_epsilon([everybody(4.0)], m, 1e-3) for m in (1.0, 3.0, 10.0, 100.0)]
    assert prices == sorted(prices)
    with pytest.raises(InputError, match="repetitions must be a finite number > 0"):
        best_of_many_epsilon([everybody(4.0)], 0.0, 1e-3)
