"""ε against published tables, four other implementations, and what must hold of any accountant.

Golden values: dp-accounting 0.6.0 (PLD and RDP), prv-accountant 0.2.0 and autodp 0.2.3.1, November
2026; published values: arXiv:2005.00218, Tables 3 (SVHN) and 6 (Shakespeare).
"""

from __future__ import annotations

import itertools
import logging
import math
import subprocess
import sys
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedls.errors import InputError
from dpfedls.privacy import (
    AccountantName,
    RoundEvent,
    delta_at,
    epsilon,
    noise_multiplier_for,
    profile,
    rounds_for,
)
from dpfedls.privacy.accounting.rdp import ORDERS
from dpfedls.sampling import FixedSizeSampling, PoissonSampling, Sampler
from inversion import exact_epsilon

SVHN, SHAKESPEARE = (2000, 100, 200), (975, 195, 100)  # clients, cohort, rounds


def poisson(rate: float, noise: float, clients: int = 1000) -> RoundEvent:
    sampler = PoissonSampling(rate=rate)
    return RoundEvent(sampler=sampler, num_clients=clients, noise_multiplier=noise)


def fixed(cohort: int, clients: int, noise: float) -> RoundEvent:
    sampler = FixedSizeSampling(cohort=cohort)
    return RoundEvent(sampler=sampler, num_clients=clients, noise_multiplier=noise)


PUBLISHED = [  # task, sampling, z, ε
    ("svhn", "fixed", (1.5, 1.3, 1.1, 1.0), (5.23, 6.34, 7.84, 8.66)),
    ("svhn", "poisson", (1.5, 1.3, 1.1, 1.0), (2.56, 3.19, 4.24, 5.07)),
    ("shakespeare", "fixed", (1.6, 1.4, 1.2, 1.0), (14.94, 17.69, 22.43, 27.24)),
    ("shakespeare", "poisson", (1.6, 1.4, 1.2, 1.0), (6.78, 8.22, 10.41, 14.04)),
]


@pytest.mark.parametrize(("task", "sampling", "noises", "published"), PUBLISHED)
def test_paper_reproduces_the_published_tables(
    task: str, sampling: str, noises: tuple[float, ...], published: tuple[float, ...]
) -> None:
    clients, cohort, rounds = SVHN if task == "svhn" else SHAKESPEARE
    for noise, printed in zip(noises, published, strict=True):
        one = fixed(cohort, clients, noise)
        if sampling == "poisson":
            one = poisson(cohort / clients, noise, clients)
        ours = epsilon([(one, rounds)], clients**-1.1, "paper")
        assert ours == pytest.approx(printed, rel=0.015)


@pytest.mark.parametrize(
    ("setting", "noises", "as_added"),
    [
        (SVHN, (1.5, 1.3, 1.1, 1.0), (14.19, 18.75, 33.93, 56.63)),
        (SHAKESPEARE, (1.6, 1.4, 1.2, 1.0), (39.9, 55.6, 90.3, 175.6)),
    ],
)
def test_published_fixed_size_rows_with_the_noise_really_added(
    setting: tuple[int, int, int], noises: tuple[float, ...], as_added: tuple[float, ...]
) -> None:
    """The authors' code adds z·clip_norm, half of what the published formula assumes."""
    clients, cohort, rounds = setting
    for noise, expected in zip(noises, as_added, strict=True):
        halved = [(fixed(cohort, clients, noise / 2), rounds)]
        assert epsilon(halved, clients**-1.1, "paper") == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "rdp", "pld"),
    [
        (0.01, 1.0, 1000, 2.1014, 1.8282),
        (0.05, 1.0, 100, 4.0389, 3.5021),
        (0.1, 2.0, 100, 2.5806, 2.3374),
        (0.01, 0.7, 500, 4.3759, 3.5969),
        (1.0, 10.0, 100, 4.7285, 4.3772),
    ],
)
def test_golden_poisson(rate: float, noise: float, rounds: int, rdp: float, pld: float) -> None:
    """dp-accounting 0.6.0, δ 1e-5; prv-accountant agrees with the last column to 1e-4."""
    spent = [(poisson(rate, noise), rounds)]
    assert epsilon(spent, 1e-5, "rdp") == pytest.approx(rdp, abs=1e-4)
    assert epsilon(spent, 1e-5) == pytest.approx(pld, rel=1e-4)


def test_golden_poisson_svhn() -> None:
    """RDP with today's conversion and PLD, dp-accounting 0.6.0."""
    rows = [(1.5, 2.08, 1.82), (1.3, 2.62, 2.29), (1.1, 3.55, 3.08), (1.0, 4.29, 3.70)]
    for noise, rdp, pld in rows:
        spent = [(poisson(0.05, noise, 2000), 200)]
        assert epsilon(spent, 2000**-1.1, "rdp") == pytest.approx(rdp, abs=0.006)
        assert epsilon(spent, 2000**-1.1) == pytest.approx(pld, abs=0.006)


@pytest.mark.parametrize(
    ("setting", "noise", "rdp"),
    [
        (SVHN, 1.0, 55.25),
        (SVHN, 1.5, 12.81),
        (SVHN, 3.0, 4.48),
        (SHAKESPEARE, 1.0, 174.2),
        (SHAKESPEARE, 3.2, 13.55),
        ((1000, 50, 30), 1.754, 3.52),
        ((1000, 50, 30), 2.693, 1.77),
    ],
)
def test_golden_fixed_size(setting: tuple[int, int, int], noise: float, rdp: float) -> None:
    """PLD by Fourier inversion, without a grid; dp-accounting 0.6.0's RDP given z/2."""
    clients, cohort, rounds = setting
    spent, delta = [(fixed(cohort, clients, noise), rounds)], clients**-1.1
    exact = exact_epsilon(cohort / clients, 2 / noise, ["replaced"], rounds, delta)
    assert exact * (1 - 1e-7) <= epsilon(spent, delta) <= exact * (1 + 5e-4)
    assert epsilon(spent, delta, "rdp") == pytest.approx(rdp, rel=1e-3, abs=0.006)


# --- other implementations -------------------------------------------------------------------

RATES, NOISES = (0.005, 0.02, 0.1, 0.3, 0.7, 1.0), (0.7, 1.1, 2.0, 5.0)
ROUNDS, DELTAS = (1, 10, 60), (1e-6, 1e-5, 1e-3)


def library_pld(rate: float, noise: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    deviation = rate * math.sqrt(math.expm1(min(1 / noise**2, 4.0)))
    return from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=min(1e-3, deviation / 25)
    )


def library_rdp(rate: float, noise: float, rounds: int) -> Any:
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS.tolist())
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return accountant.compose(event, rounds)


def library_prv(rate: float, noise: float) -> Any:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    make: Any = PRVAccountant
    round_ = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    return make(round_, max_self_compositions=max(ROUNDS), eps_error=0.2, delta_error=1e-10)


@pytest.fixture
def _autodp_leaves_out_what_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that takes most of autodp's time and counts with ``approx=True`` only."""
    from autodp import rdp_acct

    monkeypatch.setattr(rdp_acct, "fast_k_subsample_upperbound", lambda *_: math.nan)


def autodp_epsilon(rate: float, noise: float, rounds: int, delta: float) -> float:
    """By RDP at integer orders and the older conversion."""
    from autodp import rdp_acct, rdp_bank

    def gaussian(order: float) -> float:
        return rdp_bank.RDP_gaussian({"sigma": noise}, order)

    accountant = rdp_acct.anaRDPacct(m=64)
    if rate == 1:
        accountant.compose_mechanism(gaussian, coeff=rounds)
    else:
        accountant.compose_poisson_subsampled_mechanisms(gaussian, rate, coeff=rounds)
    return accountant.get_eps(delta)


@pytest.mark.usefixtures("_autodp_leaves_out_what_it_does_not_use")
@pytest.mark.parametrize(("rate", "noise"), list(itertools.product(RATES, NOISES)))
def test_poisson_agrees_with_other_libraries(rate: float, noise: float) -> None:
    """24 × 9 = 216 points of (q, z, T, δ), each against PLD, RDP, PRV and autodp."""
    pld, prv = library_pld(rate, noise), library_prv(rate, noise)
    for rounds in ROUNDS:
        spent = [(poisson(rate, noise), rounds)]
        composed, rdp = pld.self_compose(rounds), library_rdp(rate, noise, rounds)
        assert epsilon(spent, 1e-5, "rdp") == pytest.approx(rdp.get_epsilon(1e-5), rel=1e-9)
        for delta, ours in zip(DELTAS, profile(spent, DELTAS), strict=True):
            assert ours == pytest.approx(composed.get_epsilon_for_delta(delta), rel=2e-3, abs=2e-4)
            assert ours <= rdp.get_epsilon(delta)
            low, estimate, high = prv.compute_epsilon(delta, rounds)
            assert low <= ours <= high
            assert ours == pytest.approx(estimate, rel=5e-3, abs=0.02)
            older = autodp_epsilon(rate, noise, rounds, delta)
            assert ours <= older
            # Fractional orders gain up to a fifth over autodp's integers where ε is large.
            assert 0.8 * older <= epsilon(spent, delta, "paper") <= 1.05 * older


@pytest.mark.usefixtures("_autodp_leaves_out_what_it_does_not_use")
@pytest.mark.parametrize(("cohort", "noise"), list(itertools.product((10, 50, 200), (1.0, 2.5))))
def test_both_samplings_agree_with_autodp(cohort: int, noise: float) -> None:
    """autodp: RDP and the old conversion, noise ÷ sensitivity for both samplings: our 'paper'."""
    from autodp import rdp_acct, rdp_bank

    def gaussian(order: float) -> float:
        return rdp_bank.RDP_gaussian({"sigma": noise}, order)

    for rounds, delta in itertools.product((1, 100), (1e-5, 1e-3)):
        apart = rdp_acct.anaRDPacct(m=100)
        apart.compose_poisson_subsampled_mechanisms(gaussian, cohort / 1000, coeff=rounds)
        together = rdp_acct.anaRDPacct(m=100)
        together.compose_subsampled_mechanism(gaussian, cohort / 1000, coeff=rounds)
        by_poisson = epsilon([(poisson(cohort / 1000, noise), rounds)], delta, "paper")
        by_fixed = epsilon([(fixed(cohort, 1000, noise), rounds)], delta, "paper")
        # autodp's bounds are a little more general, its search over orders a little finer.
        assert 0.7 < by_poisson / apart.get_eps(delta) < 1.15
        assert 0.5 < by_fixed / together.get_eps(delta) < 1.25
        # The sound reading of the same noise: twice the multiplier, under replace-one.
        doubled = [(fixed(cohort, 1000, 2 * noise), rounds)]
        assert epsilon(doubled, delta) <= together.get_eps(delta)


def test_factor_two_of_dp_accounting_rdp() -> None:
    """Rate 1, z 2, δ 1e-5: its RDP reads z ÷ sensitivity (2.166, too small), ours z ÷ 2."""
    wrong = dp_accounting.rdp.RdpAccountant(None, dp_accounting.NeighboringRelation.REPLACE_ONE)
    wrong.compose(dp_accounting.GaussianDpEvent(2.0))
    tight = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    tight.compose(dp_accounting.GaussianDpEvent(2.0))
    everyone = [(fixed(100, 100, 2.0), 1)]
    assert wrong.get_epsilon(1e-5) == pytest.approx(2.166, abs=1e-3)
    assert tight.get_epsilon(1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon(everyone, 1e-5) == pytest.approx(tight.get_epsilon(1e-5), rel=1e-5)
    assert tight.get_epsilon(1e-5) <= epsilon(everyone, 1e-5, "rdp") < 4.8


# --- what must hold of any accountant --------------------------------------------------------


@pytest.mark.parametrize("accountant", ["pld", "rdp", "paper"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_monotone(accountant: AccountantName, sampling: str) -> None:
    """More noise, fewer rounds, smaller cohorts and larger δ each cost less."""

    def cost(cohort: int = 50, noise: float = 1.5, rounds: int = 50, delta: float = 1e-5) -> float:
        one = fixed(cohort, 1000, noise)
        if sampling == "poisson":
            one = poisson(cohort / 1000, noise)
        return epsilon([(one, rounds)], delta, accountant)

    for falling in (
        [cost(noise=z) for z in (0.5, 0.51, 1.5, 1.51, 20.0)],
        [cost(rounds=t) for t in (1000, 999, 50, 1)],
        [cost(delta=d) for d in (1e-9, 1e-5, 1e-3, 0.1)],
        [cost(cohort=m) for m in (500, 50, 49, 1)],
    ):
        assert all(a > b for a, b in itertools.pairwise(falling)), falling
    if accountant != "paper":  # the published bound is worse at 90 % of all clients than at 100 %
        assert cost(cohort=1000) >= cost(cohort=900) >= cost(cohort=500)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "paper"])
def test_composition(accountant: AccountantName) -> None:
    """T₁ + T₂ rounds cost what T do; unlike rounds cost more than either and less than the sum."""
    for one, other in (
        (poisson(0.05, 1.0), poisson(0.02, 1.5)),
        (fixed(50, 1000, 2.0), fixed(20, 1000, 3.0)),
    ):
        together = epsilon([(one, 30), (one, 70)], 1e-5, accountant)
        assert together == epsilon([(one, 100)], 1e-5, accountant)
        mixed = epsilon([(one, 50), (other, 50)], 1e-5, accountant)
        apart = [epsilon([(e, 50)], 1e-5, accountant) for e in (one, other)]
        assert max(apart) < mixed < sum(apart)
        assert mixed < together
        close = RoundEvent(
            sampler=one.sampler,
            num_clients=1000,
            noise_multiplier=one.noise_multiplier * (1 + 1e-9),
        )
        nearly = epsilon([(one, 30), (close, 70)], 1e-5, accountant)
        assert nearly == pytest.approx(together, rel=1e-3)


def test_edges() -> None:
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([(poisson(0.1, 1.0), 0)], 1e-5) == 0.0
    assert epsilon([(poisson(0.1, 0.0), 1)], 1e-5) == math.inf
    assert epsilon([(poisson(0.1, 0.0), 0), (poisson(0.1, 1.0), 1)], 1e-5) < 10
    assert profile([], [1e-5, 1e-3]) == [0.0, 0.0]
    assert delta_at([], 1.0) == 0.0
    assert delta_at([(poisson(0.1, 0.0), 1)], 1.0) == 1.0


def test_tiny_deltas_cost_what_they_cost() -> None:
    """No fall-back to full participation: 44 at δ 1e-13 where RDP proves 9.4, as it once was."""
    deltas = [1e-10, 1e-11, 1e-12, 1e-13, 1e-15, 1e-30, 1e-100]
    for one in (poisson(0.1, 1.0), fixed(100, 1000, 2.0)):
        curve = profile([(one, 20)], deltas)
        assert curve == sorted(curve)
        for delta, cost in zip(deltas, curve, strict=True):
            assert cost <= epsilon([(one, 20)], delta, "rdp")
        assert curve[3] < 1.1 * curve[2]


def test_profile_and_delta_are_inverse() -> None:
    for one in (poisson(0.1, 1.0), fixed(100, 1000, 2.0)):
        deltas = [1e-8, 1e-6, 1e-4, 1e-2]
        curve = profile([(one, 20)], deltas)
        assert curve == sorted(curve, reverse=True)
        for delta, cost in zip(deltas, curve, strict=True):
            assert epsilon([(one, 20)], delta) == cost
            assert delta_at([(one, 20)], cost) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon([(poisson(0.1, 1.0), 1), (fixed(5, 10, 1.0), 1)], 1e-5), "one sampler"),
        (lambda: epsilon([(poisson(0.1, 1.0), -1)], 1e-5), "use 0 for none"),
        (lambda: epsilon([], 0.0), "delta must be in"),
        (lambda: epsilon([], 1.0), "delta must be in"),
        (lambda: epsilon([], 1e-310), "at least 1e-300"),
        (lambda: epsilon([], 1e-5, "pdl"), "did you mean 'pld'"),  # pyright: ignore[reportArgumentType]
        (lambda: rounds_for(0.0, event=poisson(0.1, 1.0), delta=1e-5), "epsilon must be"),
        (lambda: noise_for(math.inf, PoissonSampling(rate=0.1), 1), "epsilon must be"),
        (lambda: noise_for(1.0, PoissonSampling(rate=0.1), 0), "rounds must be"),
        (
            lambda: epsilon([(poisson(0.1, 2.0), 1), (poisson(0.1, 3.0), 1)], 1e-5, "closed-form"),
            "use accountant 'pld'",
        ),
    ],
)
def test_wrong_input_is_named(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_extremes_are_finite_and_monotone(sampling: str) -> None:
    """Next to no noise, or very many rounds: coarse, but an answer, and monotone."""
    for cohort, rounds in itertools.product((1, 500, 10_000), (1, 100_000)):
        costs = []
        for noise in (1e-9, 1e-3, 0.02, 0.3, 50.0, 1e5):
            one = fixed(cohort, 10_000, noise)
            if sampling == "poisson":
                one = poisson(cohort / 10_000, noise)
            costs.append(epsilon([(one, rounds)], 1e-6))
        assert all(math.isfinite(c) and c >= 0 for c in costs)
        assert all(a >= b for a, b in itertools.pairwise(costs)), costs


# --- calibration -----------------------------------------------------------------------------


def noise_for(
    target: float,
    sampler: Sampler,
    rounds: int,
    accountant: AccountantName = "pld",
    clients: int = 1000,
) -> float:
    return noise_multiplier_for(
        target,
        sampler=sampler,
        num_clients=clients,
        rounds=rounds,
        delta=1e-5,
        accountant=accountant,
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    target=st.floats(0.05, 50),
    cohort=st.integers(1, 1000),
    rounds=st.integers(1, 5000),
    poisson_sampling=st.booleans(),
)
def test_calibration_meets_the_target_from_below(
    target: float, cohort: int, rounds: int, poisson_sampling: bool
) -> None:
    sampler = (
        PoissonSampling(rate=cohort / 1000)
        if poisson_sampling
        else FixedSizeSampling(cohort=cohort)
    )
    noise = noise_for(target, sampler, rounds)
    one = RoundEvent(sampler=sampler, num_clients=1000, noise_multiplier=noise)
    assert 0.999 * target < epsilon([(one, rounds)], 1e-5) <= target


@pytest.mark.parametrize("accountant", ["rdp", "paper"])
@pytest.mark.parametrize("sampler", [PoissonSampling(rate=0.05), FixedSizeSampling(cohort=50)])
def test_calibration_by_other_accountants(accountant: AccountantName, sampler: Sampler) -> None:
    for target in (0.8, 6.0):
        noise = noise_for(target, sampler, 30, accountant)
        one = RoundEvent(sampler=sampler, num_clients=1000, noise_multiplier=noise)
        assert 0.999 * target < epsilon([(one, 30)], 1e-5, accountant) <= target


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("one", [poisson(0.05, 1.5), fixed(50, 1000, 3.0), poisson(1.0, 30.0)])
def test_rounds_are_the_most_that_fit(accountant: AccountantName, one: RoundEvent) -> None:
    for target in (0.05, 2.0):
        most = rounds_for(target, event=one, delta=1e-5, accountant=accountant)
        assert epsilon([(one, most)], 1e-5, accountant) <= target
        assert epsilon([(one, most + 1)], 1e-5, accountant) > target
    assert rounds_for(1e-6, event=one, delta=1e-5, accountant=accountant) == 0


def test_rounds_without_noise_are_none() -> None:
    assert rounds_for(1.0, event=poisson(0.1, 0.0), delta=1e-5) == 0


# --- manners ---------------------------------------------------------------------------------


def test_import_is_light() -> None:
    """Neither torch nor dp_accounting comes with the import, so the CLI answers at once."""
    heavy = "{'torch', 'dp_accounting', 'flwr', 'matplotlib'}"
    code = f"import sys, dpfedls.privacy; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_warnings_on_stderr(caplog: pytest.LogCaptureFixture) -> None:
    """dp-accounting warns of series that do not converge at small noise; we count them infinite."""
    with caplog.at_level(logging.WARNING):
        assert np.isfinite(epsilon([(poisson(0.5, 0.05), 10)], 1e-5, "rdp"))
    assert not caplog.records
