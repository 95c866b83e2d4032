"""The PLD of fixed-size sampling: above every pair of neighbours, attained by the worst of them.

Divergences of small populations are exact (every subset enumerated, integrals by quadrature), so
only the last test is statistical.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpfedls.privacy import RoundEvent, epsilon
from dpfedls.privacy.accounting.fixed_size import fixed_size_delta, fixed_size_pmf
from dpfedls.privacy.accounting.gaussian import gaussian_delta
from dpfedls.privacy.accounting.loss_pmf import LossPmf, added_delta, poisson_pmfs, removed_delta
from dpfedls.sampling import FixedSizeSampling

Floats = NDArray[np.float64]

EPSILONS = np.array([-3.0, -1.0, -0.2, -0.01, 0.0, 0.01, 0.2, 1.0, 3.0])


def event(cohort: int, clients: int, noise: float) -> RoundEvent:
    sampler = FixedSizeSampling(cohort=cohort)
    return RoundEvent(sampler=sampler, num_clients=clients, noise_multiplier=noise)


def density(x: Floats, contributions: tuple[float, ...], cohort: int, noise: float) -> Floats:
    """The released sum's density, clip norm 1: a mixture over all cohorts, all equally likely."""
    sums = [sum(chosen) for chosen in itertools.combinations(contributions, cohort)]
    normal = np.exp(-(((x[:, None] - np.array(sums)) / noise) ** 2) / 2).mean(axis=1)
    return normal / (noise * math.sqrt(2 * math.pi))


def library(pmf: LossPmf) -> Any:
    """Our discrete loss in the hands of dp-accounting, which composes in a way of its own."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    return DensePLDPmf(pmf.interval, pmf.lowest, pmf.masses, pmf.infinite, True)


def discrete_delta(pmf: Any, epsilons: Floats) -> Floats:
    return np.asarray(pmf.get_delta_for_epsilon(epsilons))


def exact_delta(p: Floats, q: Floats, step: float, epsilons: Floats) -> Floats:
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() * step for e in epsilons])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    contributions=st.lists(st.floats(-1, 1), min_size=2, max_size=6),
    replaced=st.floats(-1, 1),
    cohort=st.integers(1, 6),
    noise=st.floats(0.3, 4),
)
def test_no_neighbours_exceed_the_profile(
    contributions: list[float], replaced: float, cohort: int, noise: float
) -> None:
    """Theorem 9 of Balle, Barthe and Gaboardi, in both orders and at negative ε too."""
    cohort = min(cohort, len(contributions))
    x = np.linspace(-8 - 9 * noise, 8 + 9 * noise, 8001)
    p = density(x, tuple(contributions), cohort, noise)
    q = density(x, (*contributions[:-1], replaced), cohort, noise)
    bound = fixed_size_delta(EPSILONS, cohort / len(contributions), 2 / noise)
    for one, other in ((p, q), (q, p)):
        assert np.all(exact_delta(one, other, x[1] - x[0], EPSILONS) <= bound + 1e-6)


@pytest.mark.parametrize(("clients", "cohort", "noise"), [(2, 1, 1.0), (5, 2, 0.7), (7, 6, 2.5)])
def test_the_worst_neighbours_attain_the_profile(clients: int, cohort: int, noise: float) -> None:
    """All contribute -1, one becomes +1: no smaller bound holds, and forgetting the 2 fails."""
    x = np.linspace(-clients - 9 * noise, clients + 9 * noise, 40001)
    q = density(x, (-1.0,) * clients, cohort, noise)
    p = density(x, (-1.0,) * (clients - 1) + (1.0,), cohort, noise)
    forward = exact_delta(p, q, x[1] - x[0], EPSILONS)
    backward = exact_delta(q, p, x[1] - x[0], EPSILONS)
    bound = fixed_size_delta(EPSILONS, cohort / clients, 2 / noise)
    assert np.where(EPSILONS >= 0, forward, backward) == pytest.approx(bound, abs=1e-6)
    too_small = fixed_size_delta(EPSILONS, cohort / clients, 1 / noise)
    assert np.any(np.maximum(forward, backward) > too_small + 1e-3)


@pytest.mark.parametrize("rate", [1e-4, 0.05, 0.7, 1.0])
@pytest.mark.parametrize("mu", [0.01, 1.0, 6.0])
def test_profile_is_that_of_some_pair(rate: float, mu: float) -> None:
    """Convex and falling in e^ε, 1 at 0, above 1 - e^ε: as Zhu, Dong and Wang ask of a profile."""
    for alpha in (np.linspace(1e-4, 3, 6001), np.linspace(1, 500, 6001)):
        delta = fixed_size_delta(np.log(alpha), rate, mu)
        slopes = np.diff(delta)
        assert np.all(slopes <= 1e-15)
        assert np.all(np.diff(slopes) >= -1e-15)
        assert np.all(delta >= np.maximum(1 - alpha, 0) - 1e-15)
    assert fixed_size_delta(np.array([-40.0]), rate, mu)[0] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rate", [1e-3, 0.2, 0.99, 1.0])
@pytest.mark.parametrize("mu", [0.05, 1.0, 5.0])
def test_dots_meet_the_profile_and_never_undercut_it(rate: float, mu: float) -> None:
    """The discrete loss equals δ on its grid, exceeds it between, and is a distribution."""
    for interval in (mu * 0.3, mu * 0.03):
        pmf = library(fixed_size_pmf(rate, mu, interval))
        dots: Floats = interval * np.arange(-20.0, 60.0)
        for epsilons in (dots, dots + interval / 3):
            ours = fixed_size_delta(epsilons, rate, mu)
            assert np.all(discrete_delta(pmf, epsilons) >= ours * (1 - 1e-9) - 1e-13)
        assert discrete_delta(pmf, dots) == pytest.approx(
            fixed_size_delta(dots, rate, mu), rel=1e-6, abs=1e-12
        )
        assert pmf.get_delta_for_epsilon(-1e3) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("rate", [1e-3, 0.2, 0.99])
@pytest.mark.parametrize("mu", [0.05, 1.0, 5.0])
def test_poisson_profiles_by_quadrature(rate: float, mu: float) -> None:
    """δ of (P, Q) and (Q, P), P = (1 - q)·N(0, 1) + q·N(mu, 1), and their discrete losses."""
    x = np.linspace(-12, 12 + mu, 60001)
    step = x[1] - x[0]
    q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    p = (1 - rate) * q + rate * np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    epsilons = np.array([0.0, 1e-3, 0.05, 0.2, 1.0, 3.0])
    forward, backward = exact_delta(p, q, step, epsilons), exact_delta(q, p, step, epsilons)
    assert removed_delta(epsilons, rate, mu) == pytest.approx(forward, abs=1e-7)
    assert added_delta(epsilons, rate, mu) == pytest.approx(backward, abs=1e-7)
    both = np.concatenate([-epsilons[:0:-1], epsilons])
    for pmf, exact in zip(
        poisson_pmfs(rate, mu, 0.01 * mu),
        (exact_delta(p, q, step, both), exact_delta(q, p, step, both)),
        strict=True,
    ):
        assert np.all(discrete_delta(library(pmf), both) >= exact - 1e-7)


def test_gaussian_delta_keeps_its_digits() -> None:
    """Against mpmath 1.3 at 60 digits: mu 1, ε 20 and mu 0.01, ε 0.3."""
    import mpmath

    with mpmath.workdps(60):
        for mu, cost in ((1.0, 20.0), (0.01, 0.3), (30.0, 700.0)):
            m, e = mpmath.mpf(mu), mpmath.mpf(cost)
            exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            assert gaussian_delta(np.array([cost]), mu)[0] == pytest.approx(float(exact), rel=1e-9)


def test_everyone_takes_part_is_the_plain_gaussian() -> None:
    """Rate 1 against dp-accounting's PLD under replace-one (0.6.0): z 2 costs 4.3772 at δ 1e-5."""
    for noise, rounds in ((2.0, 1), (5.0, 3), (20.0, 100)):
        theirs = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
        theirs.compose(dp_accounting.GaussianDpEvent(noise), rounds)
        ours = epsilon([(event(30, 30, noise), rounds)], 1e-5)
        assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-4)
    assert epsilon([(event(30, 30, 2.0), 1)], 1e-5) == pytest.approx(4.3772, abs=5e-5)


@pytest.mark.parametrize("cohort", [1, 30, 100, 500, 990])
def test_never_above_rdp(cohort: int) -> None:
    """60 points against the bound of Wang, Balle and Kasiviswanathan with the sound factor 2."""
    for noise, rounds, delta in itertools.product((1.0, 2.0, 6.0, 40.0), (1, 30, 1000), (1e-5,)):
        spent = [(event(cohort, 1000, noise), rounds)]
        assert epsilon(spent, delta) <= epsilon(spent, delta, "rdp")


def test_replacements_may_alternate() -> None:
    """Rounds of (P, Q) and rounds of (Q, P) in one run stay below our bound, which is not far off.

    Composing each direction apart and taking the larger, as for add-or-remove-one, would not
    prove this (Lebeda et al. 2024).
    """
    rate, mu, interval, rounds = 0.3, 2.0, 2e-3, 10
    removed, added = map(library, poisson_pmfs(rate, mu, interval))
    mixed = removed.self_compose(rounds // 2).compose(added.self_compose(rounds // 2))
    ours = library(fixed_size_pmf(rate, mu, interval)).self_compose(rounds)
    alone = removed.self_compose(rounds)
    epsilons = np.array([0.0, 0.5, 2.0, 5.0])
    for pmf in (mixed, alone):
        assert np.all(discrete_delta(ours, epsilons) >= discrete_delta(pmf, epsilons))
    assert ours.get_epsilon_for_delta(1e-5) < 1.2 * alone.get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize(("noise", "rounds"), [(1.5, 20), (3.0, 100)])
def test_not_below_simulation(noise: float, rounds: int) -> None:
    """Many runs of the real sampling on the worst neighbours give a lower bound on δ(ε).

    δ(ε) = E_P[max(0, 1 - e^(ε - loss))]; Hoeffding's interval, false alarm below 1e-6 a run.
    """
    clients, cohort, runs = 20, 2, 40_000
    rng = np.random.default_rng(20_261_115)
    rate, shift = cohort / clients, 2.0 / noise
    # The person is in the cohort when its first `cohort` places hold client 0.
    chosen = np.array([rng.permutation(clients)[:cohort].min() == 0 for _ in range(5_000)])
    assert abs(chosen.mean() - rate) < math.sqrt(math.log(2e6) / (2 * len(chosen)))
    output = rng.standard_normal((runs, rounds)) + shift * (rng.random((runs, rounds)) < rate)
    ratio = math.log(rate) + shift * (output - shift / 2)
    loss = np.logaddexp(math.log1p(-rate), ratio).sum(axis=1)
    spent = [(event(cohort, clients, noise), rounds)]
    margin = math.sqrt(math.log(1e6) / (2 * runs))
    for delta in (0.05, 0.1):
        cost = epsilon(spent, delta)
        simulated = np.maximum(0, -np.expm1(np.minimum(cost - loss, 0))).mean()
        assert simulated - margin <= delta
        # Half of that ε is refuted, so the test can fail.
        assert np.maximum(0, -np.expm1(np.minimum(cost / 2 - loss, 0))).mean() - margin > delta
