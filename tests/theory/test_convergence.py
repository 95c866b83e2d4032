from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedls import InputError, theory
from dpfedls.server import newest_weight
from problems import CASES, PROBLEM, changed


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


@pytest.mark.parametrize("case", CASES)
def test_extreme_constants_give_numbers_or_one_line(case):
    """``--lipschitz 1e300`` overflowed; a thousand draws of far too large and small ones."""
    rng = np.random.default_rng(5)
    extremes = [1e-320, 1e-300, 1e-30, 1e-9, 1.0, 1e9, 1e30, 1e100, 1e300, math.inf, math.nan]
    names = ("smoothness", "lipschitz", "distance", "initial_gap", "server_rate", "strength")
    computed = 0
    for _ in range(1000):
        chosen = rng.choice(names, size=2, replace=False)
        values = {name: float(rng.choice(extremes)) for name in chosen}
        try:
            found = theory.convergence(changed(**values), case)
        except InputError:
            continue
        computed += 1
        assert all(math.isfinite(value) for value in found[:5]), values
    assert computed > 50
