"""Lemmas 7, 8 and 9: drift of the clients, convexity seen from afar, variance of a cohort."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpfedls.errors import InputError, require_not_negative
from dpfedls.theory.convergence import Problem, require_finite


def local_divergence(problem: Problem, local_rate: float, squared_gradient: float) -> float:
    """Lemma 7: the most that (1/N) Σ_j Σ_{i≤K} E‖w^t − w_j^{t,i}‖² can be.

    ``squared_gradient`` is ‖∇f(w^t)‖². The rate may be at most Λ_min/(8Kβ(1 + B²)).
    """
    p = problem
    require_finite("local_rate", local_rate, "it is η_l")
    require_not_negative("squared_gradient", squared_gradient, "it is ‖∇f‖²")
    largest = p.smallest_eigenvalue / (
        8 * p.local_steps * p.smoothness * (1 + p.heterogeneity_b**2)
    )
    if local_rate > largest:
        raise InputError(
            f"local_rate = {local_rate:g} is above Λ_min/(8Kβ(1 + B²)) = {largest:g}, and Lemma 7 "
            "says nothing there; lower it"
        )
    unlike = p.heterogeneity_g**2 + p.heterogeneity_b**2 * squared_gradient
    noise = p.gradient_variance / p.smallest_eigenvalue
    return (local_rate * p.local_steps) ** 2 * (4 * p.local_steps * unlike + 2 * noise)


def perturbed_convexity(problem: Problem, gap: float, distance: float, drift: float) -> float:
    """Lemma 8: the least that ⟨∇h(x), z − y⟩ can be for a μ-strongly convex, β-smooth h.

    ``gap`` is h(z) − h(y), ``distance`` ‖y − z‖² in the norm of A_σ, ``drift`` ‖z − x‖².
    """
    return gap + problem.smoothed_convexity / 4 * distance - problem.smoothness * drift


def fixed_size_variance(vectors: ArrayLike, cohort: int) -> float:
    """Lemma 9: E‖mean of a cohort − mean of all‖² for ``cohort`` rows drawn without replacement."""
    rows = _rows(vectors, cohort)
    if len(rows) == 1:
        return 0.0
    spread = np.mean(np.sum((rows - rows.mean(axis=0)) ** 2, axis=1))
    return float(spread / cohort * (1 - (cohort - 1) / (len(rows) - 1)))


def poisson_variance(vectors: ArrayLike, cohort: float) -> float:
    """The same for Poisson sampling divided by the expected cohort, of which Lemma 9 is not true.

    Sizes, not distances from the mean, count: (1 − τ)/S · mean ‖x_j‖². Like clients are no help.
    """
    rows = _rows(vectors, cohort)
    return float((1 - cohort / len(rows)) / cohort * np.mean(np.sum(rows**2, axis=1)))


def _rows(vectors: ArrayLike, cohort: float) -> np.ndarray:
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.ndim != 2 or not 0 < cohort <= len(rows):
        raise InputError(
            f"cohort = {cohort:g} of vectors of shape {rows.shape} cannot be drawn; give a matrix "
            "with one row per client, and a cohort of at most so many"
        )
    return rows
