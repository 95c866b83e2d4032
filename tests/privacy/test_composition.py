"""Composed losses: never below the truth, however many rounds and however small δ.

The truth is computed without our grid, pmf or FFT: by Fourier inversion (inversion.py) for many
rounds, by quadrature for one and two, in closed form where everybody takes part.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from dpfedls.privacy import RoundEvent, delta_at, epsilon, profile
from dpfedls.privacy.accounting.compose import Tilt, compose, power
from dpfedls.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpfedls.privacy.accounting.loss_pmf import LossPmf, added_delta, removed_delta
from dpfedls.sampling import FixedSizeSampling, PoissonSampling
from inversion import exact_epsilon

BOTH, REPLACED = ["removed", "added"], ["replaced"]
CURVE = [10.0**-k for k in range(2, 15)]


def poisson(rate: float, noise: float) -> RoundEvent:
    sampler = PoissonSampling(rate=rate)
    return RoundEvent(sampler=sampler, num_clients=1000, noise_multiplier=noise)


def fixed(cohort: int, clients: int, noise: float) -> RoundEvent:
    sampler = FixedSizeSampling(cohort=cohort)
    return RoundEvent(sampler=sampler, num_clients=clients, noise_multiplier=noise)


@pytest.mark.parametrize(
    ("one", "rounds", "delta"),
    [
        (poisson(0.01, 1.0), 100_000, 1e-12),
        (poisson(0.001, 1.0), 1_000_000, 1e-12),
        (fixed(1, 1000, 4.0), 1_000_000, 1e-12),
        (poisson(0.05, 1.0), 100, 1e-13),
        (poisson(0.3, 2.0), 1000, 1e-20),
        (fixed(100, 1000, 2.0), 300, 1e-14),
    ],
)
def test_many_rounds_at_tiny_deltas(one: RoundEvent, rounds: int, delta: float) -> None:
    """An FFT without a tilt errs by T·1e-16 everywhere and says 36.4 where 37.54 is true."""
    kinds = BOTH if isinstance(one.sampler, PoissonSampling) else REPLACED
    exact = exact_epsilon(one.rate, 1 / one.noise_over_sensitivity, kinds, rounds, delta)
    ours = epsilon([(one, rounds)], delta)
    assert exact * (1 - 1e-7) <= ours <= exact * (1 + 1e-3)


def two_rounds(rate: float, mu: float, epsilon: float) -> float:
    """δ(ε) of two rounds of the worst pair: the second's profile, integrated over the first."""

    def integrand(x: float) -> float:
        density = (1 - rate) * math.exp(-(x**2) / 2) + rate * math.exp(-((x - mu) ** 2) / 2)
        rest = epsilon - math.log1p(rate * math.expm1(mu * (x - mu / 2)))
        size = np.array([abs(rest)])
        if rest >= 0:
            second = float(removed_delta(size, rate, mu)[0])
        else:  # H_α(P‖Q) = 1 - α + α·H_{1/α}(Q‖P)
            turned = float(added_delta(size, rate, mu)[0])
            second = -math.expm1(rest) + math.exp(rest) * turned
        return density / math.sqrt(2 * math.pi) * second

    edges = np.linspace(-12, mu + 12, 13)
    return sum(quad(integrand, a, b, epsrel=1e-8)[0] for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize(("rate", "mu"), [(0.1, 2.0), (0.5, 0.7)])
def test_one_and_two_rounds_by_quadrature(rate: float, mu: float) -> None:
    """One round attains its profile; two cost no less than the worst fixed pair's two, nor 2·ε."""
    one = fixed(round(1000 * rate), 1000, 2 / mu)
    for delta in (1e-3, 1e-7):
        single, double = epsilon([(one, 1)], delta), epsilon([(one, 2)], delta)
        # Q is standard normal and P the mixture: integrate (p - e^ε·q)+ where p exceeds.
        crossing = math.log(1 + math.expm1(single) / rate) / mu + mu / 2
        exact = rate * (0.5 * math.erfc((crossing - mu) / math.sqrt(2)))
        exact -= (math.exp(single) - 1 + rate) * 0.5 * math.erfc(crossing / math.sqrt(2))
        assert exact == pytest.approx(delta, rel=1e-3)
        assert exact <= delta
        lower = two_rounds(rate, mu, double)
        assert lower <= delta
        # The same pair at 90 % of that ε is above δ, so the test can fail.
        assert two_rounds(rate, mu, 0.9 * double) > delta


@pytest.mark.parametrize("noise", [0.3, 2.0, 50.0, 1e5])
def test_everyone_is_the_gaussian_exactly(noise: float) -> None:
    """T rounds with everybody are one Gaussian: 60 digits against ours, at δ down to 1e-200."""
    for one, mu in ((poisson(1.0, noise), 1 / noise), (fixed(9, 9, noise), 2 / noise)):
        for rounds, delta in itertools.product((1, 1000), (1e-2, 1e-12, 1e-50, 1e-200)):
            ours = epsilon([(one, rounds)], delta)
            with mpmath.workdps(60):
                m, e = mpmath.mpf(mu) * mpmath.sqrt(rounds), mpmath.mpf(ours)
                true = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
                assert true <= delta
                assert ours == 0 or true > delta * 0.999


def test_gaussian_profile_and_inverses() -> None:
    """At mu from 1e-9 to 1e3, against 60 digits; and any (ε, δ) has a mu, at ε = 5e23 too."""
    for mu, x in itertools.product((1e-9, 1e-3, 0.09, 0.11, 3.0, 1e3), (0.0, 1.0, 9.0, 30.0)):
        cost = mu * (x + mu / 2)
        with mpmath.workdps(60):
            m, e = mpmath.mpf(mu), mpmath.mpf(cost)
            exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert gaussian_delta(np.array([cost]), mu)[0] == pytest.approx(float(exact), rel=1e-10)
    for mu, delta in itertools.product((1e-6, 0.5, 40.0, 1e12), (0.3, 1e-5, 1e-100)):
        cost = gaussian_epsilon(mu, delta)
        assert cost == 0 or gaussian_mu(cost, delta) == pytest.approx(mu, rel=1e-6)


GRID = [
    *(poisson(q, z) for q, z in itertools.product((1e-5, 0.01, 0.3), (0.6, 2.0, 30.0))),
    *(fixed(m, 1000, z) for m, z in itertools.product((1, 100), (1.2, 8.0))),
]


@pytest.mark.parametrize("one", GRID)
def test_curves_are_monotone_between_the_truth_and_rdp(one: RoundEvent) -> None:
    """507 points: ε falls as δ grows, is at most RDP's and at least the truth of one round."""
    mu = 1 / one.noise_over_sensitivity
    for rounds in (1, 200, 100_000):
        curve = profile([(one, rounds)], CURVE)
        assert curve == sorted(curve)
        for delta, cost in zip(CURVE, curve, strict=True):
            assert cost <= epsilon([(one, rounds)], delta, "rdp")
            assert removed_delta(np.array([cost]), one.rate, mu)[0] <= delta
        assert delta_at([(one, rounds)], curve[5]) <= CURVE[5] * (1 + 1e-3)


def test_the_charge_covers_the_rounding_of_a_hostile_spectrum() -> None:
    """A loss of two values T times is binomial: δ at 60 digits stays below ours, at any tilt."""
    up, down, rounds, step = 0.25, 0.75, 4096, 0.01
    pmf = LossPmf(step, -1, np.array([down, 0.0, up]), 0.0)
    for order, target in ((0.0, -18.0), (60.0, -18.0), (150.0, -10.0)):
        tilt = Tilt(order, -rounds, 4 * rounds, order + 1)
        ours = compose([(pmf, rounds)], tilt)
        cost = target + 2.0
        with mpmath.workdps(60):
            true = mpmath.mpf(0)
            for ups in range(rounds + 1):
                loss = mpmath.mpf(step) * (2 * ups - rounds)
                if loss > cost:
                    mass = mpmath.binomial(rounds, ups) * mpmath.mpf(up) ** ups
                    mass *= mpmath.mpf(down) ** (rounds - ups)
                    true += mass * (1 - mpmath.exp(cost - loss))
        assert ours.delta(cost) >= true


def test_power_is_a_power() -> None:
    base: Any = np.exp(1j * np.linspace(0, 3, 7)) * 0.999
    for exponent in (1, 2, 13, 1000):
        assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-12)
