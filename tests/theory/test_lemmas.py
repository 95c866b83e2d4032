from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from dpfedls import InputError, theory
from problems import changed, ring_matrix

RNG = np.random.default_rng(0)


def test_lemma_7_bounds_the_drift_of_quadratic_clients():
    """Clients f_j(w) = ½(w − c_j)'H(w − c_j): expectations are exact, no draws needed."""
    dim, steps, clients, strength = 6, 7, 5, 2.0
    curvature = np.array([0.1, 0.4, 1.0, 1.5, 2.0, 2.0])
    centres, start = RNG.normal(size=(clients, dim)), RNG.normal(size=dim)
    gradients = (start - centres) * curvature
    mean = gradients.mean(axis=0)
    noise = 0.3  # variance of each coordinate of a mini-batch gradient
    smoothing = np.linalg.inv(ring_matrix(dim, strength))
    problem = changed(
        dim=dim,
        strength=strength,
        clients=clients,
        cohort=2,
        local_steps=steps,
        smoothness=2.0,
        heterogeneity_b=1.0,
        heterogeneity_g=float(np.sqrt(np.mean(np.sum(gradients**2, axis=1)) - mean @ mean)),
        gradient_variance=noise * float(np.trace(smoothing)),
    )
    largest = problem.smallest_eigenvalue / (8 * steps * 2.0 * 2)
    rate = largest
    total = 0.0
    shrink = 1 - rate * curvature
    for j in range(clients):
        offset, variance = np.zeros(dim), np.zeros(dim)
        for _ in range(steps):
            offset = shrink * offset - rate * gradients[j]
            variance = shrink**2 * variance + rate**2 * noise
            total += float(np.sum(offset**2 + variance))
    bound = theory.local_divergence(problem, rate, float(mean @ mean))
    assert total / clients <= bound
    assert total / clients > bound / 20  # it says something
    with pytest.raises(InputError, match="Lemma 7 says nothing"):
        theory.local_divergence(problem, 1.01 * largest, 1.0)


def test_lemma_7_by_hand():
    problem = changed(local_steps=3, strength=0.0, heterogeneity_g=2.0, heterogeneity_b=1.0)
    found = theory.local_divergence(problem, 0.01, 5.0)
    assert found == pytest.approx(1e-4 * (4 * 27 * (4 + 5) + 2 * 9 * 0.7))


def test_lemma_8_holds_for_quadratics_and_not_with_a_larger_curvature():
    dim, strength = 8, 1.0
    curvature = np.linspace(0.5, 2.0, dim)  # μ = 0.5, β = 2
    problem = changed(dim=dim, strength=strength, strong_convexity=0.5, smoothness=2.0)
    far = changed(problem, strong_convexity=2.0)

    def slack(known, x, y, z):
        value = lambda w: 0.5 * float(curvature @ w**2)  # noqa: E731
        bound = theory.perturbed_convexity(
            known,
            value(z) - value(y),
            theory.squared_norm(y - z, strength),
            float((z - x) @ (z - x)),
        )
        return float((curvature * x) @ (z - y)) - bound

    points = RNG.normal(size=(2000, 3, dim))
    assert min(slack(problem, *p) for p in points) >= 0
    y = np.zeros(dim)
    y[0], x = 1.0, np.zeros(dim)  # along the flattest axis, x = z: nothing to spare but ¼ of ½
    assert slack(problem, x, y, x) >= 0
    alternating = np.resize([1.0, -1.0], dim)  # where A_σ measures most
    assert slack(far, x, alternating * (curvature == 0.5), x) < 0


def test_lemma_9_is_exact_for_cohorts_of_fixed_size():
    vectors = RNG.normal(size=(7, 3)) + 5
    for cohort in (1, 3, 7):
        means = [vectors[list(rows)].mean(axis=0) for rows in combinations(range(7), cohort)]
        exact = np.mean(np.sum((np.array(means) - vectors.mean(axis=0)) ** 2, axis=1))
        assert theory.fixed_size_variance(vectors, cohort) == pytest.approx(exact, abs=1e-12)
    assert theory.fixed_size_variance(vectors[:1], 1) == 0


def test_lemma_9_is_not_true_for_poisson_cohorts():
    vectors = RNG.normal(size=(7, 3)) + 5
    cohort, rate, exact = 3, 3 / 7, 0.0
    for chosen in product((0, 1), repeat=7):
        weight = np.prod([rate if c else 1 - rate for c in chosen])
        mean = np.array(chosen) @ vectors / cohort
        exact += weight * np.sum((mean - vectors.mean(axis=0)) ** 2)
    assert theory.poisson_variance(vectors, cohort) == pytest.approx(exact)
    assert exact > 10 * theory.fixed_size_variance(vectors, cohort)
    like = np.ones((7, 3))  # nobody differs, and yet the sum does
    assert theory.fixed_size_variance(like, 3) == 0
    assert theory.poisson_variance(like, 3) == pytest.approx(4 / 7)


@pytest.mark.parametrize("cohort", [0, 8])
def test_a_cohort_that_cannot_be_drawn_is_refused(cohort):
    with pytest.raises(InputError, match="cannot be drawn"):
        theory.fixed_size_variance(np.ones((7, 3)), cohort)
