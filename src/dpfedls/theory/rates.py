"""Orders without constants: the utility of Theorem 3 and the rounds of Corollary 1."""

from __future__ import annotations

import math

from dpfedls.theory.convergence import Case, Problem, require_finite


def utility(problem: Problem, case: Case, *, epsilon: float, delta: float) -> float:
    """The error of Theorem 3 after its T rounds, up to constants and logarithms."""
    p = problem
    dominant = (
        p.gradient_variance / p.local_steps
        + (1 - p.sampling_rate) * p.heterogeneity_g**2
        + p.effective_dimension(case)
    )
    ratio = p.lipschitz**2 * math.log(1 / delta) / (epsilon * p.clients) ** 2
    if case == "strongly-convex":
        return dominant * ratio / p.smoothed_convexity
    start = p.distance if case == "convex" else p.initial_gap * p.smoothness
    return math.sqrt(dominant * start * ratio)


def communication(problem: Problem, case: Case, accuracy: float) -> dict[str, float]:
    """The rounds of Corollary 1 for a gap ``accuracy``, term by term, up to constants and logs."""
    require_finite("accuracy", accuracy, "it is the optimality gap to reach")
    p = problem
    g, stiffness = p.heterogeneity_g, (1 + 4 * p.strength) * p.heterogeneity_b**2
    per_gap = {
        "variance": p.gradient_variance / (p.local_steps * p.cohort),
        "privacy": p.effective_dimension(case) * (p.lipschitz * p.noise_multiplier / p.cohort) ** 2,
        "sampling": (1 - p.sampling_rate) * g**2 / p.cohort,
    }
    if case == "strongly-convex":
        scale = 1 / p.smoothed_convexity
        init, drift = p.smoothness * stiffness, math.sqrt(p.smoothness / accuracy) * g
        return _scaled(scale, init, drift, per_gap, accuracy)
    if case == "convex":
        init, drift = p.smoothness * stiffness / accuracy, math.sqrt(p.smoothness) * g
        return _scaled(p.distance, init, drift / accuracy**1.5, per_gap, accuracy**2)
    scale = p.initial_gap * p.smoothness
    return _scaled(scale, stiffness / accuracy, g / accuracy**1.5, per_gap, accuracy**2)


def _scaled(
    scale: float, init: float, drift: float, per_gap: dict[str, float], gap: float
) -> dict[str, float]:
    rest = {name: scale * value / gap for name, value in per_gap.items()}
    return {"init": scale * init, **rest, "drift": scale * drift}
