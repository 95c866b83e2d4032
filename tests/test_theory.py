from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dpfedls
from dpfedls import InputError, theory
from dpfedls.commands.theory import theory as command
from dpfedls.privacy.closed_form import closed_form_noise
from dpfedls.sampling import FixedSizeSampling
from dpfedls.server import newest_weight

CASES = ("strongly-convex", "convex", "non-convex")
PROBLEM = theory.Problem(
    dim=1000,
    strength=1.0,
    clients=10_000,
    cohort=100,
    local_steps=5,
    rounds=50_000,
    noise_multiplier=2.0,
    server_rate=10.0,
    smoothness=2.0,
    lipschitz=3.0,
    strong_convexity=0.5,
    gradient_variance=0.7,
    heterogeneity_g=0.4,
    heterogeneity_b=1.5,
    distance=1.3,
    initial_gap=0.9,
)


def changed(problem=PROBLEM, **fields):
    return dataclasses.replace(problem, **fields)


def ring_matrix(dim, strength):
    """I + strength · L written out, neighbour by neighbour: right for 1 and 2 entries too."""
    matrix = np.eye(dim)
    for i in range(dim):
        for neighbour in ((i + 1) % dim, (i - 1) % dim):
            matrix[i, i] += strength
            matrix[i, neighbour] -= strength
    return matrix


# ── The ring ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 8, 31, 128])
@pytest.mark.parametrize("strength", [0.0, 1e-9, 0.1, 1.0, 37.5, 1e6])
def test_closed_form_sum_and_dense_eigenvalues_agree(dim, strength):
    dense = 1 / np.linalg.eigvalsh(ring_matrix(dim, strength))
    found = theory.eigenvalues(dim, strength)
    np.testing.assert_allclose(np.sort(found), np.sort(dense), rtol=1e-8)
    assert theory.smallest_eigenvalue(dim, strength) == pytest.approx(found.min(), rel=1e-12)
    assert theory.smallest_eigenvalue(dim, strength) >= 1 / (1 + 4 * strength)
    for power in (1, 2):
        closed = theory.effective_dimension(dim, strength, power)
        assert closed == pytest.approx(np.sum(dense**power), rel=1e-8)
        by_sum = theory.effective_dimension_by_sum(dim, strength, power)
        assert closed == pytest.approx(by_sum, rel=1e-12)
        assert closed == pytest.approx(dpfedls.effective_dimension(dim, strength, power), rel=1e-12)


@given(dim=st.integers(1, 5000), strength=st.floats(0, 1e6), power=st.sampled_from([1, 2]))
def test_closed_form_equals_the_sum(dim, strength, power):
    closed = theory.effective_dimension(dim, strength, power)
    by_sum = theory.effective_dimension_by_sum(dim, strength, power)
    assert closed == pytest.approx(by_sum, rel=1e-11)


@pytest.mark.parametrize("power", [1, 2])
def test_closed_form_equals_the_sum_beyond_one_chunk_of_memory(power):
    for dim, strength in ((3_431_754, 1.0), (2_000_003, 1e6)):
        closed = theory.effective_dimension(dim, strength, power)
        by_sum = theory.effective_dimension_by_sum(dim, strength, power)
        assert closed == pytest.approx(by_sum, rel=1e-12)


def test_effective_dimensions_in_the_limits():
    assert theory.effective_dimension(10**8, 0.0) == 10**8
    s = math.sqrt(1 + 4e6)  # a long ring forgets that it closes
    assert theory.effective_dimension(10**8, 1e6) == pytest.approx(1e8 / s, rel=1e-14)
    assert theory.effective_dimension(10**8, 1e6, 2) == pytest.approx(1e8 * (1 + 2e6) / s**3)
    # All that is left of a short ring smoothed without end is its mean.
    assert theory.effective_dimension(9, 1e12) == pytest.approx(1, abs=1e-9)
    assert theory.effective_dimension(9, 1e12, 2) == pytest.approx(1, abs=1e-9)
    # σ → 0 is the identity, without a jump.
    assert theory.effective_dimension(50, 1e-300) == pytest.approx(50)
    assert theory.effective_dimension(50, 1e-12, 2) == pytest.approx(50 * (1 - 4e-12), rel=1e-14)


@given(dim=st.integers(2, 10**8), strength=st.floats(1e-6, 1e5), power=st.sampled_from([1, 2]))
def test_effective_dimension_falls_as_smoothing_grows(dim, strength, power):
    weak = theory.effective_dimension(dim, strength, power)
    strong = theory.effective_dimension(dim, 1.5 * strength, power)
    assert 1 <= strong < weak <= dim
    both = [theory.effective_dimension(dim, strength, p) for p in (1, 2)]
    assert both[1] <= both[0] * (1 + 1e-12)  # Λ ≤ 1


@pytest.mark.parametrize("dim", [1, 2, 7, 40])
def test_squared_norm_is_the_quadratic_form(dim):
    v = np.random.default_rng(dim).normal(size=dim)
    expected = v @ ring_matrix(dim, 2.5) @ v
    assert theory.squared_norm(v, 2.5) == pytest.approx(expected, rel=1e-12)


def test_the_ring_refuses_what_it_cannot_be():
    with pytest.raises(InputError, match="dim must be a whole number >= 1"):
        theory.effective_dimension(0, 1.0)
    with pytest.raises(InputError, match="strength"):
        theory.eigenvalues(3, -1.0)


# ── Proposition 1 ─────────────────────────────────────────────────────────────────────────────


def squared_errors(v, noise_stddev, strength, trials, seed):
    noise = torch.randn(trials, v.size, dtype=torch.float64, generator=_generator(seed))
    signal = torch.from_numpy(v)
    smoothed = (dpfedls.smooth(signal + noise_stddev * row, strength) for row in noise)
    return np.array([float((estimate - signal).square().sum()) for estimate in smoothed])


def _generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dim", [33, 64])
@pytest.mark.parametrize("strength", [0.0, 1.0, 4.0])
def test_proposition_1_holds_in_simulation(dim, strength):
    """Within 4 standard errors of the mean: a right formula fails once in 16,000 tests."""
    v, noise_stddev = 2 * np.sin(np.linspace(0, 15, dim)), 0.3
    errors = squared_errors(v, noise_stddev, strength, trials=3000, seed=dim)
    spread = errors.std() / math.sqrt(errors.size)
    expected = theory.risk(v, noise_stddev, strength)
    assert abs(errors.mean() - expected.total) < 4 * spread
    if strength:  # the test would notice d_σ in the place of d̃_σ, and a lost bias
        wrong = expected.bias + noise_stddev**2 * theory.effective_dimension(dim, strength)
        assert abs(errors.mean() - wrong) > 10 * spread
        assert abs(errors.mean() - expected.variance) > 10 * spread


def test_bias_is_what_smoothing_takes_from_the_signal():
    v = np.random.default_rng(0).normal(size=50)
    lost = v - np.linalg.solve(ring_matrix(50, 1.7), v)
    assert theory.risk(v, 0.2, 1.7).bias == pytest.approx(lost @ lost, rel=1e-12)
    assert theory.risk(v, 0.2, 0.0) == (0.0, pytest.approx(0.04 * 50))
    assert theory.risk(np.ones(20), 0.2, 5.0).bias == pytest.approx(0, abs=1e-25)


def test_smoothing_helps_where_noise_is_large_and_hurts_where_it_is_small():
    """Supplement S6: the sine of 30 units, with little noise and with much."""
    v = np.sin(np.linspace(0, 30, 300))
    for noise_stddev, helps in ((0.001, False), (0.5, True)):
        plain = theory.risk(v, noise_stddev, 0.0).total
        assert (theory.risk(v, noise_stddev, 1.0).total < plain) is helps


# ── Theorems 4 to 6 ───────────────────────────────────────────────────────────────────────────


def by_hand(p, case, step):
    """Eqs. (30), (32) and (35), transcribed with the paper's letters."""
    eta, k, s, tau = step, p.local_steps, p.cohort, p.cohort / p.clients
    gains = 1 / (1 + 2 * p.strength * (1 - np.cos(2 * np.pi * np.arange(p.dim) / p.dim)))
    mu, g2, beta = p.strong_convexity * gains.min(), p.heterogeneity_g**2, p.smoothness
    dim = (gains**2).sum() if case == "non-convex" else gains.sum()
    var = (1 / (p.server_rate**2 * k) + 1 / (s * k)) * p.gradient_variance
    het, dp = 4 / s * (1 - tau) * g2, p.lipschitz**2 * p.noise_multiplier**2 * dim / s**2
    if case == "non-convex":
        init = 8 / (eta * k * p.rounds) * p.initial_gap
        drift, scale = 32 * beta**2 * g2 * k**2 * eta**2, 4 * eta * k * beta
    else:
        drift, scale = 24 * eta**2 * k**2 * beta * g2, 2 * eta * k
        init = 2 / (eta * p.rounds * k) * p.distance
        if case == "strongly-convex":
            init = 3 * mu * math.exp(-mu * eta * k * p.rounds / 2) * p.distance
    return init, drift + scale * het, scale * var, scale * dp


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_error_terms_are_the_proofs(case, strength):
    problem = changed(strength=strength)
    bound = theory.convergence(problem, case)
    assert bound[:4] == pytest.approx(by_hand(problem, case, bound.step), rel=1e-9)
    assert bound.total == pytest.approx(sum(bound[:4]))
    assert bound.holds


def test_steps_are_the_theorems():
    p, k = PROBLEM, PROBLEM.local_steps
    largest = theory.smallest_eigenvalue(1000, 1.0) / (8 * k * 2.0 * (1 + 1.5**2))
    assert theory.largest_step(p) == pytest.approx(largest)
    level = theory.noise_level(p, "strongly-convex").total
    mu = 0.5 * 0.2
    by_noise = 2 * math.log(mu**2 * p.rounds * p.distance / level) / (mu * k * p.rounds)
    assert theory.convergence(p, "strongly-convex").step == pytest.approx(min(by_noise, largest))
    by_noise = math.sqrt(p.distance / (level * p.rounds)) / k
    by_drift = (p.distance / (24 * 2.0 * 0.4**2 * p.rounds)) ** (1 / 3) / k
    expected = min(by_noise, by_drift, largest)
    assert theory.convergence(p, "convex").step == pytest.approx(expected)
    # The step of Theorem 6 needs d̃_σ, where the statement prints H_σ for H̃_σ.
    loud = changed(noise_multiplier=200.0, heterogeneity_g=0.0)
    level = theory.noise_level(loud, "non-convex").total
    by_noise = math.sqrt(loud.initial_gap / (level * loud.rounds * 2.0)) / k
    assert theory.convergence(loud, "non-convex").step == pytest.approx(by_noise)
    assert level < theory.noise_level(loud, "convex").total


def test_without_noise_and_unlike_clients_only_the_start_is_left():
    silent = changed(
        noise_multiplier=0.0, gradient_variance=0.0, heterogeneity_g=0.0, cohort=10_000
    )
    for case in CASES:
        bound = theory.convergence(silent, case)
        assert bound[1:4] == (0.0, 0.0, 0.0)
        assert bound.step == theory.largest_step(silent)
        assert theory.step_free_bound(silent, case) >= bound.total


@given(
    strength=st.floats(0, 10),
    noise=st.floats(0, 100),
    g=st.floats(0, 10),
    b=st.floats(1, 5),
    variance=st.floats(0, 10),
    cohort=st.integers(1, 10_000),
    log_rounds=st.floats(0, 8),
    case=st.sampled_from(CASES),
)
def test_the_step_free_bounds_are_never_below_the_totals(
    strength, noise, g, b, variance, cohort, log_rounds, case
):
    problem = changed(
        strength=strength,
        noise_multiplier=noise,
        heterogeneity_g=g,
        heterogeneity_b=b,
        gradient_variance=variance,
        cohort=cohort,
        rounds=math.ceil(10**log_rounds),
    )
    total = theory.convergence(problem, case).total
    assert total <= theory.step_free_bound(problem, case) * (1 + 1e-9)


def test_constants_printed_too_small_are_too_small():
    """Where docs/theory.md corrects a constant, the printed one is below the paper's own terms."""
    drifting = changed(heterogeneity_g=50.0, noise_multiplier=0.0, cohort=10_000, rounds=10**9)
    bound = theory.convergence(drifting, "convex")
    cube = (24 * 2.0 * 1.3**2 * 50.0**2 / 1e18) ** (1 / 3)  # printed once, needed three times
    printed = 16 * 2.0 * (1 + 1.5**2) * 5 * 1.3 / 1e9
    printed += 4 * math.sqrt(1.3 * theory.noise_level(drifting, "convex").total / 1e9) + cube
    assert bound.total > printed
    loud = changed(noise_multiplier=1e4, heterogeneity_g=0.0)
    level = theory.noise_level(loud, "non-convex").privacy
    root = math.sqrt(loud.initial_gap * loud.smoothness * level / loud.rounds)
    privacy = theory.convergence(loud, "non-convex").privacy
    assert 2 * root < privacy <= 4 * root  # E_dp of Theorem 6 is printed with 2
    start = theory.convergence(changed(noise_multiplier=1e4), "convex").init
    assert start > 16 * 2.0 * (1 + 1.5**2) * 5 * 1.3 / PROBLEM.rounds  # E_init of Theorem 5


def test_conditions_are_reported_not_hidden():
    short = theory.convergence(changed(rounds=100), "strongly-convex")
    assert not short.holds
    assert [c.holds for c in short.conditions] == [True, True, False]
    timid = theory.convergence(changed(server_rate=0.5), "convex")
    assert [c.holds for c in timid.conditions] == [False, True]
    bold = theory.convergence(PROBLEM, "non-convex", step=2 * theory.largest_step(PROBLEM))
    assert [c.holds for c in bold.conditions] == [True, False]


def test_without_smoothing_the_bounds_are_those_of_dp_fed():
    plain = changed(strength=0.0)
    assert (plain.smallest_eigenvalue, plain.smoothed_convexity) == (1.0, 0.5)
    for case in CASES:
        assert plain.effective_dimension(case) == plain.dim


@given(strength=st.floats(0.01, 100), case=st.sampled_from(CASES))
def test_smoothing_lowers_the_privacy_term_at_the_same_step(strength, case):
    smoothed = changed(strength=strength)
    step = theory.largest_step(smoothed)
    privacy = theory.convergence(smoothed, case, step).privacy
    assert privacy < theory.convergence(changed(strength=0.0), case, step).privacy


@given(strength=st.floats(0.01, 100), dim=st.integers(2, 10**6))
def test_smoothing_never_lowers_the_strongly_convex_rate(strength, dim):
    """ΣΛ_i/Λ_min ≥ d: what d_σ gains μ_σ loses, a limit the paper does not state."""
    p = changed(strength=strength, dim=dim)
    assert p.effective_dimension("strongly-convex") / p.smallest_eigenvalue >= dim


# ── The bound against a run ───────────────────────────────────────────────────────────────────


def test_the_privacy_term_has_the_right_shape():
    """On f = h‖w‖²/2 noise alone settles at 1/8 of the term, as small steps go: exact, by mode."""
    problem = changed(smoothness=0.7, strong_convexity=0.7, strength=4.0, heterogeneity_g=0.0)
    step = 1e-3 * theory.largest_step(problem)
    reach, h = step * problem.local_steps, 0.7
    gains = theory.eigenvalues(problem.dim, problem.strength)
    noise = gains * reach * problem.lipschitz * problem.noise_multiplier / problem.cohort
    settled = h / 2 * np.sum(noise**2 / (1 - (1 - reach * h * gains) ** 2))
    term = theory.convergence(problem, "strongly-convex", step).privacy
    assert settled / term == pytest.approx(1 / 8, rel=1e-3)


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_theorem_4_holds_on_a_federated_quadratic(strength):
    """Algorithm 1 on f_j = (w − c_j)ᵀH(w − c_j)/2, 24 runs: below the bound, and not far below."""
    rng = np.random.default_rng(7)
    runs, dim, jitter = 24, 24, 0.3
    hessian = np.linspace(0.5, 1.0, dim)
    centres = 0.3 * rng.normal(size=(40, dim))
    optimum = centres.mean(axis=0)
    start = optimum + np.sin(2 * np.pi * np.arange(dim) / dim) / 2
    spread = np.sum((hessian * (centres - optimum)) ** 2) / 40
    problem = theory.Problem(
        dim=dim,
        strength=strength,
        clients=40,
        cohort=10,
        local_steps=3,
        rounds=1500,
        noise_multiplier=2.0,
        server_rate=math.sqrt(10),
        smoothness=1.0,
        lipschitz=7.0,
        strong_convexity=0.5,
        gradient_variance=jitter**2 * theory.effective_dimension(dim, strength),
        heterogeneity_g=math.sqrt(spread),
        heterogeneity_b=1.0,
        distance=theory.squared_norm(start - optimum, strength),
        initial_gap=1.0,
    )
    bound = theory.convergence(problem, "strongly-convex")
    assert bound.holds
    ratio = theory.averaging_ratio(problem, "strongly-convex", bound.step)
    local_rate = bound.step / problem.server_rate
    clip_norm = local_rate * problem.local_steps * problem.lipschitz
    gains = theory.eigenvalues(dim, strength)
    w = np.tile(start, (runs, 1))
    average, gap = w.copy(), _gaps(w, optimum, hessian)
    for t in range(1, problem.rounds + 1):
        drawn = np.argsort(rng.random((runs, 40)), axis=1)[:, :10]
        local = np.repeat(w[:, None], 10, axis=1)
        for _ in range(problem.local_steps):
            gradient = hessian * (local - centres[drawn])
            gradient += jitter * rng.choice([-1.0, 1.0], size=gradient.shape)
            # So no clip norm of η_l K L ever binds, as the proof needs.
            assert np.linalg.norm(gradient, axis=-1).max() <= problem.lipschitz
            local -= local_rate * gradient
        total = (local - w[:, None]).sum(axis=1)
        total += clip_norm * problem.noise_multiplier * rng.normal(size=w.shape)
        direction = np.fft.ifft(np.fft.fft(total / 10) * gains).real
        w = w + problem.server_rate * direction
        share = newest_weight(ratio, t)
        average += share * (w - average)
        gap += share * (_gaps(w, optimum, hessian) - gap)
    assert _gaps(average, optimum, hessian).mean() <= gap.mean() <= bound.total
    assert gap.mean() >= bound.total / 20


def _gaps(w, optimum, hessian):
    return 0.5 * np.sum(hessian * (w - optimum) ** 2, axis=1)


# ── Theorem 1, Theorem 3, Corollary 1 ─────────────────────────────────────────────────────────


def test_the_round_constant_is_least_where_its_docstring_says():
    least = min(theory.round_constant(x) for x in np.arange(1, 1000) / 1000)
    assert theory.round_constant(2 - math.sqrt(2)) == pytest.approx(14 * (3 + 2 * math.sqrt(2)))
    assert least == pytest.approx(theory.round_constant(2 - math.sqrt(2)), rel=1e-5)


@pytest.mark.parametrize("epsilon", [6.0, 9.0])
def test_noise_of_theorem_1_is_that_of_the_privacy_package(epsilon):
    delta = 1000**-1.1
    budget = theory.settle(epsilon, delta, clients=1000, cohort=50, rounds=30)
    other = closed_form_noise(
        epsilon, sampler=FixedSizeSampling(cohort=50), num_clients=1000, rounds=30, delta=delta
    )
    assert budget.noise_multiplier == pytest.approx(other.noise_multiplier, rel=1e-9)
    assert (budget.lambda_, budget.alpha) == pytest.approx((other.lambda_, other.alpha))
    assert all(c.holds for c in budget.conditions if "log(1/δ)" not in c.condition)


def test_rounds_and_noise_undo_each_other():
    setting = {"clients": 10**5, "cohort": 200, "lambda_": 0.2}
    by_rounds = theory.settle(4.0, 1e-6, rounds=20_000, **setting)
    by_noise = theory.settle(4.0, 1e-6, noise_multiplier=by_rounds.noise_multiplier, **setting)
    assert by_noise.rounds == 20_000
    both = theory.settle(4.0, 1e-6, lipschitz=2.0, clients=10**5, cohort=200)
    assert all(c.holds for c in both.conditions)
    expected = (4e5 / 2) ** 2 / (theory.round_constant(both.lambda_) * 200 * math.log(1e6))
    assert both.rounds == math.floor(expected)
    assert both.noise_multiplier**2 <= 200 / 2.0**2  # log(1/δ) ≥ ε turns Eq. (4) into S/L²


def test_a_budget_outside_theorem_1_is_answered_and_marked():
    budget = theory.settle(1.0, 1e-6, clients=10**5, cohort=1000, noise_multiplier=3.0)
    assert not all(c.holds for c in budget.conditions)
    quiet = theory.settle(1.0, 1e-6, clients=10**6, cohort=10, rounds=3)
    assert not quiet.conditions[0].holds  # ν₁² < 8/3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": math.inf}, "epsilon must be a finite"),
        ({"delta": 1.0}, "delta must be in"),
        ({"lambda_": 1.0}, "lambda must be in"),
        ({"rounds": 3, "noise_multiplier": 1.0}, "one too many"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0"),
        ({"noise_multiplier": 0.01}, "does not pay for one round"),
    ],
)
def test_a_wrong_budget_is_refused(fields, said):
    fields = {"epsilon": 1.0, "delta": 1e-5, "clients": 100, "cohort": 50} | fields
    with pytest.raises(InputError, match=said):
        theory.settle(fields.pop("epsilon"), fields.pop("delta"), **fields)


@pytest.mark.parametrize("case", CASES)
def test_theorem_3_is_what_its_rounds_give(case):
    """With T of Theorem 3 and like clients the total is the stated order, as N grows."""
    ratios = []
    for clients in (10**6, 10**7, 10**8):
        budget = theory.settle(4.0, clients**-1.1, clients=clients, cohort=400, lambda_=0.5)
        problem = changed(
            clients=clients,
            cohort=400,
            rounds=budget.rounds,
            noise_multiplier=budget.noise_multiplier,
            server_rate=20.0,
            lipschitz=1.0,
            heterogeneity_g=0.0,
            local_steps=1000,
        )
        bound = theory.convergence(problem, case)
        assert bound.holds
        order = theory.utility(problem, case, epsilon=4.0, delta=clients**-1.1)
        log = math.log(clients) if case == "strongly-convex" else 1.0
        ratios.append(bound.total / (order * log))
    root = math.sqrt(theory.round_constant(0.5))  # √C_0 multiplies the orders with a root
    constant = root**2 if case == "strongly-convex" else root
    assert all(constant <= ratio <= 12 * constant for ratio in ratios)
    assert max(ratios) / min(ratios) < 1.5


def test_the_logarithm_of_theorem_3_does_not_depend_on_the_cohort():
    """Table 1 prints log S; T/H_σ depends on N alone, so the factor is of order log N."""
    reached = []
    for cohort in (100, 10_000):
        budget = theory.settle(4.0, 1e-8, clients=10**7, cohort=cohort, lambda_=0.5)
        problem = changed(
            clients=10**7,
            cohort=cohort,
            rounds=budget.rounds,
            noise_multiplier=budget.noise_multiplier,
            server_rate=math.sqrt(cohort),
            lipschitz=1.0,
            heterogeneity_g=0.0,
        )
        bound = theory.convergence(problem, "strongly-convex")
        reached.append(bound.step * problem.smoothed_convexity * 5 * problem.rounds)
    assert reached[0] == pytest.approx(reached[1], rel=1e-3)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("accuracy", [1e-2, 1e-4])
def test_the_rounds_of_corollary_1_reach_the_gap(case, accuracy):
    problem = changed(server_rate=10.0, cohort=100)
    terms = theory.communication(problem, case, accuracy)
    assert set(terms) == {"init", "variance", "privacy", "sampling", "drift"}
    order = sum(terms.values())
    logs = math.log(order) if case == "strongly-convex" else 1.0
    enough = changed(problem, rounds=math.ceil(400 * order * logs))
    assert theory.convergence(enough, case).total <= accuracy
    # A rate that were too small by a power of ϵ would not show above; too large shows here.
    few = changed(problem, rounds=max(1, int(order / 100)))
    assert theory.convergence(few, case).total > accuracy


def test_the_parts_of_corollary_1_scale_with_the_gap_as_stated():
    powers = {"init": 1, "variance": 2, "privacy": 2, "sampling": 2, "drift": 1.5}
    convex = {"init": 0, "variance": 1, "privacy": 1, "sampling": 1, "drift": 0.5}
    for case in CASES:
        coarse, fine = (theory.communication(PROBLEM, case, a) for a in (1e-2, 1e-4))
        for name, power in (convex if case == "strongly-convex" else powers).items():
            assert fine[name] / coarse[name] == pytest.approx(100.0**power)


# ── Table 1 ───────────────────────────────────────────────────────────────────────────────────


def test_every_row_of_table_1_evaluates():
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.01, samples=10)
    rows = theory.table_1(PROBLEM, target)
    assert len(rows) == 9
    assert [row["part"] for row in rows] == ["utility"] * 5 + ["communication"] * 4
    dashes = [(row["strongly_convex"] is None, row["non_convex"] is None) for row in rows]
    assert [sum(column) for column in zip(*dashes, strict=True)] == [2, 3]
    values = [row[name] for row in rows for name in ("strongly_convex", "non_convex")]
    assert all(value > 0 for value in values if value is not None)


def test_table_1_values_by_hand():
    problem = changed(strength=2.0, dim=10)
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.01, samples=10)
    values = [
        (row["strongly_convex"], row["non_convex"]) for row in theory.table_1(problem, target)
    ]
    d1, d2, n, log = *(theory.effective_dimension(10, 2.0, p) for p in (1, 2)), 1e4, math.log(1e5)
    mu, spread = 0.5 / 9, 0.7 / 500 + 0.99 * 0.16 / 100
    expected = [
        (10 * math.log(1e9) ** 3 / (0.5 * n**2 * 4), None),
        (10 * math.log(n) * log / (0.5 * n**2 * 4), math.sqrt(10 * log) / (n * 2)),
        (None, math.sqrt(10 * log) / (n * 10 * 2)),
        (None, math.sqrt(d2 * log) / (n * 2)),
        (d1 * math.log(n) * log / (mu * n**2 * 4), math.sqrt(d2 * log) / (n * 2)),
        (0.7 / (0.25 * n * 5 * 0.01) + 0.16 * 5 / (0.25 * 0.01), None),
        ((0.86 / (n * 5 * 0.01) + (math.sqrt(0.7) + 0.4) / 0.1 + n * 2.25) / 0.5, None),
        ((spread / 0.01 + 0.4 / 0.1 + 2.25) / 0.5, spread / 1e-4 + 0.4 / 1e-3 + 2.25 / 0.01),
        (
            ((spread + d1 * 36 / 1e4) / 0.01 + 0.4 / 0.1 + 9 * 2.25) / mu,
            (spread + d2 * 36 / 1e4) / 1e-4 + 0.4 / 1e-3 + 9 * 2.25 / 0.01,
        ),
    ]
    for row, hands in zip(values, expected, strict=True):
        for found, hand in zip(row, hands, strict=True):
            assert found == (None if hand is None else pytest.approx(hand, rel=1e-9))


def test_dp_fed_ls_without_noise_and_smoothing_is_fed_avg():
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.01)
    rows = theory.table_1(changed(strength=0.0, noise_multiplier=0.0), target)
    for name in ("strongly_convex", "non_convex"):
        assert rows[-1][name] == pytest.approx(rows[-2][name])
        assert rows[4]["non_convex"] == rows[1]["non_convex"]  # upper part: d̃_0 = d


def test_table_1_is_corollary_1_where_the_table_takes_constants_to_be_one():
    problem = changed(smoothness=1.0, distance=1.0, initial_gap=1.0)
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.003)
    last = theory.table_1(problem, target)[-1]
    for name, case in (("strongly_convex", "strongly-convex"), ("non_convex", "non-convex")):
        terms = theory.communication(problem, case, 0.003)
        assert last[name] == pytest.approx(sum(terms.values()))


# ── Wrong problems, and the command ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"cohort": 10_001}, "cohort must be <= clients"),
        ({"heterogeneity_b": 0.5}, "heterogeneity_b must be"),
        ({"strong_convexity": 3.0}, "strong_convexity must be in"),
        ({"smoothness": math.inf}, "smoothness must be a finite"),
        ({"distance": 0.0}, "distance must be > 0"),
        ({"gradient_variance": -1.0}, "gradient_variance must be a finite"),
    ],
)
def test_a_wrong_problem_is_refused(fields, said):
    with pytest.raises(InputError, match=said):
        changed(**fields)


def ask(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize("case", CASES)
def test_the_command_answers_with_its_defaults(case):
    result = ask("--case", case, "--json")
    values = json.loads(result.stdout)
    assert {"init", "heterogeneity", "variance", "privacy", "total"} <= set(values)
    assert {"effective_dimension", "rounds"} <= set(values)
    assert values["holds"] is True
    parts = sum(values[part] for part in ("init", "heterogeneity", "variance", "privacy"))
    assert values["total"] == pytest.approx(parts)
    assert 0 < values["total"] < 1


def test_the_command_derives_rounds_and_noise_from_a_budget():
    asked = ("--case", "convex", "--epsilon", "4", "--cohort", "200", "--json")
    both = json.loads(ask(*asked).stdout)
    assert both["holds"] is True
    assert both["delta"] == pytest.approx(1e5**-1.1)
    noise = json.loads(ask(*asked, "--rounds", "20000", "--accuracy", "0.01").stdout)
    assert (noise["rounds"], noise["noise_multiplier"] < both["noise_multiplier"]) == (20_000, True)
    terms = noise["communication"]
    assert terms.pop("total") == pytest.approx(sum(terms.values()))


def test_the_command_in_words():
    said = ask("--case", "strongly-convex", "--rounds", "100", "--accuracy", "0.1").stdout
    assert "NOT met  T ≥ 1/(μ_σ η̃ K)" in said
    assert "met      η_g ≥ 1" in said
    assert "rounds to that gap" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delta", "1e-5"], "--delta and --lambda mean nothing without --epsilon"),
        (["--cohort", "0"], "--cohort must be from 1 to"),
        (["--accuracy", "0"], "accuracy must be > 0"),
        (["--dim", "0"], "dim must be >= 1"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, said):
    result = ask("--case", "convex", *arguments)
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(said)
    assert "\n" not in str(result.exception)


def test_theory_needs_no_torch():
    code = (
        "import sys\n"
        "from dpfedls.commands.theory import Case, theory\n"
        "assert 'numpy' not in sys.modules\n"  # so that --help is quick
        "theory(Case.CONVEX, json=True)\n"
        "assert not {'torch', 'scipy', 'dp_accounting'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
