"""Constants that rounding is charged by, held against computations with many more digits."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import scipy.fft

from dpfedls.privacy.accounting import compose as composing
from dpfedls.privacy.accounting.fixed_rdp import fixed_size_rdp
from dpfedls.privacy.accounting.fixed_size import fixed_size_pmf
from dpfedls.privacy.accounting.loss_pmf import (
    PROFILE_MARGIN,
    ZERO_MARGIN,
    grid,
    largest_loss,
    poisson_pmfs,
    removed_delta,
)
from dpfedls.privacy.accounting.rdp import ORDERS, rdp_curve
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import PoissonSampling


def exact_rdp(rate: float, s: float, order: int) -> mp.mpf:
    """Theorem 27 of Wang, Balle, Kasiviswanathan 2019 as printed, with digits to lose."""
    with mp.workdps(60 + int(order * (2.2 * math.log10(s + 1) + 1))):
        q, square = mp.mpf(rate), mp.mpf(s) ** 2
        power = [mp.exp(mp.mpf(k) * (k - 1) / (2 * square)) for k in range(order + 2)]

        def difference(n: int) -> mp.mpf:
            terms = ((-1) ** (n - k) * mp.binomial(n, k) * power[k] for k in range(n + 1))
            return mp.fsum(terms)

        even = {n: difference(n) for n in range(2, order + 2, 2)}
        total = mp.mpf(1)
        for j in range(2, order + 1):
            if j == 2:
                term = min(4 * (power[2] - 1), 2 * power[2])
            else:
                between = mp.sqrt(even[2 * (j // 2)] * even[2 * ((j + 1) // 2)])
                term = min(4 * between, 2 * power[j])
            total += term * q**j * mp.binomial(order, j)
        return mp.log(total) / (order - 1)


@pytest.mark.parametrize("s", [0.3, 1.5, 30.0, 1e4, 3e7, 1e9])
@pytest.mark.parametrize("rate", [0.001, 0.5])
def test_fixed_size_rdp_keeps_its_digits_at_any_noise_and_is_never_below(s, rate):
    """dp-accounting 0.6.0 is 8e-4 too low at noise ÷ sensitivity 3e7 and says 0 at 1e9."""
    orders = [2, 3, 7, 24]
    found = fixed_size_rdp(rate, s, orders)
    for order, value in zip(orders, found, strict=True):
        truth = exact_rdp(rate, s, order)
        assert truth <= mp.mpf(float(value)) <= truth * (1 + 2e-9)


@pytest.mark.parametrize("s", [0.1, 1.5, 30.0, 1e4, 3e7, 1e9])
@pytest.mark.parametrize("rate", [1e-4, 0.3, 1.0])
def test_poisson_rdp_keeps_its_digits_at_any_noise_and_is_never_below(s, rate):
    """dp-accounting 0.6.0 says less than 0 at rate 1e-4 from noise ÷ sensitivity 1e6 on."""
    event = RoundEvent(sampler=PoissonSampling(rate=rate), num_clients=10**4, noise_multiplier=s)
    curve = rdp_curve([(event, 1)])
    assert (curve > 0).all()
    for order in (2, 9, 64, 512):
        with mp.workdps(60):
            q, square = mp.mpf(rate), mp.mpf(s) ** 2
            terms = (
                mp.binomial(order, k)
                * (1 - q) ** (order - k)
                * q**k
                * mp.exp((k * k - k) / (2 * square))
                for k in range(order + 1)
            )
            truth = mp.log(mp.fsum(terms)) / (order - 1)
        found = mp.mpf(float(curve[order == ORDERS][0]))
        assert truth * (1 - mp.mpf("1e-15")) <= found <= truth * (1 + 2e-10)


@pytest.mark.parametrize(("rate", "s"), [(0.05, 0.8), (0.2, 3.0), (0.5, 40.0), (0.9, 1.0)])
def test_fixed_size_rdp_is_above_the_divergence_of_the_worst_pair(rate, s):
    """E_Q[(P/Q)^α] and its reverse, by quadrature, for one person moved from −C to +C."""
    for order in (2, 5, 16):
        z = np.linspace(-14, order / s + 14, 40001)
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + z / s - 1 / (2 * s**2))
        one = np.trapezoid(density * np.exp(order * log_ratio), z)
        other = np.trapezoid(density * np.exp((1 - order) * log_ratio), z)
        claimed = float(fixed_size_rdp(rate, s, [order])[0])
        assert math.log(max(one, other)) / (order - 1) <= claimed


def ring_error(weights: np.ndarray, times: int) -> tuple[float, float]:
    """How far the float64 transform is off at worst, and what is charged for it."""
    length = len(weights)
    level = composing.FFT_LEVEL * math.log2(length)
    coefficients = np.fft.rfft(weights)
    size = np.abs(coefficients)
    masses = np.fft.irfft(composing.power(coefficients, times), length)
    with np.errstate(divide="ignore"):
        log_size, log_bound = times * np.log(size), times * np.log(size + level)
    charge = np.exp(log_bound) * (
        -np.expm1(log_size - log_bound) + composing.PRODUCT * times + level
    )
    # Long doubles have 64 bits of mantissa: 2,048 times more accurate.
    long = scipy.fft.rfft(weights.astype(np.longdouble))
    truth = scipy.fft.irfft(composing.power(long, times), length)
    return float(np.abs(masses - truth).max()), composing.mean(charge, length)


@pytest.mark.parametrize("times", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("kind", ["one place", "two places", "normal", "flat", "random"])
def test_the_charge_for_a_transforms_rounding_is_not_exceeded(kind, times):
    """Against long doubles, lengths 2^6 to 2^16. At worst a fortieth of the charge is needed."""
    rng = np.random.default_rng(0)
    for k in (6, 11, 16):
        n = 2**k
        places = np.arange(n)
        weights = {
            "one place": np.eye(1, n, n // 3 + 1)[0],
            "two places": 0.5 * (np.eye(1, n, 1)[0] + np.eye(1, n, n // 2 - 1)[0]),
            "normal": np.exp(-((places - n / 2) ** 2) / (2 * (n / 300 + 1) ** 2)),
            "flat": np.ones(n),
            "random": rng.exponential(size=n) ** 4,
        }[kind]
        found, charged = ring_error(weights / weights.sum(), times)
        assert found <= 0.1 * charged


@pytest.mark.parametrize("rate", [0.001, 0.3])
@pytest.mark.parametrize("steps", [300, 100_000])
def test_masses_of_one_round_are_not_below_those_of_the_same_dots_with_more_digits(rate, steps):
    """Connect-the-dots in 40 digits from the same profile, without its margins."""
    mu, tail = 0.7, 7.0
    top = largest_loss(rate, mu, tail)
    interval = top / steps
    pmf = fixed_size_pmf(rate, mu, interval, tail)
    deltas = removed_delta(grid(top, interval), rate, mu)
    places = np.unique(np.geomspace(1, len(deltas) - 1, 60).astype(int))
    kept = -pmf.lowest
    tails = np.append(np.cumsum(pmf.masses[:kept:-1].astype(np.longdouble))[::-1], 0)
    losses = interval * np.arange(1, len(tails)).astype(np.longdouble)
    weighted = np.append(
        np.cumsum((pmf.masses[kept + 1 :] * np.exp(-losses))[::-1].astype(np.longdouble))[::-1], 0
    )
    for i in places:
        # δ of the masses at the i-th dot: Σ_{l>ε}(1 − e^(ε−l))·p + what is infinite.
        found = tails[i] - np.exp(np.longdouble(interval * i)) * weighted[i] + pmf.infinite
        assert found >= deltas[i] * (1 + 0.5 * PROFILE_MARGIN)
    mass = pmf.masses.astype(np.longdouble).sum() + pmf.infinite
    assert 1 + 0.5 * ZERO_MARGIN <= mass <= 1 + 2 * ZERO_MARGIN


def test_a_coarse_and_a_fine_round_leave_enough_at_loss_zero():
    """On a grid made for another round the mass at zero has the most digits to lose."""
    for rate, mu in ((1e-4, 1.0), (0.5, 0.1), (0.9, 1.0)):
        interval = 2 * largest_loss(rate, mu, 6.8) / 2**18
        for pmf in poisson_pmfs(rate, mu, interval, 6.8):
            mass = pmf.masses.astype(np.longdouble).sum() + pmf.infinite
            assert 1 + 0.5 * ZERO_MARGIN <= mass <= 1 + 2 * ZERO_MARGIN
