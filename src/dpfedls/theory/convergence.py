"""Theorems 4, 5 and 6: the four parts of the error after T rounds of DP-Fed-LS.

Each proof ends in one inequality, Eq. (30), (32) or (35), true for every step η̃ = η_l η_g up to a
largest one. Its parts are the initial error, the drift and sampling of unlike clients, the variance
of mini-batches, and the noise of privacy. The cohorts are of fixed size, the clip norm η_l K L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from dpfedls import errors
from dpfedls.errors import InputError, require_positive
from dpfedls.theory.ring import effective_dimension, smallest_eigenvalue

Case: TypeAlias = Literal["strongly-convex", "convex", "non-convex"]


_LARGEST = 1e30  # of constants: products of several of them must stay numbers
_MOST = 10**15  # of counts


def require_finite(name: str, value: float, why: str) -> None:
    """Refuse all but positive numbers with which the bounds can be computed."""
    require_positive(name, value, why)
    errors.require_not_negative(name, value, why)  # and finite
    if not 1 / _LARGEST <= value <= _LARGEST:
        raise InputError(
            f"{name} must be in [{1 / _LARGEST:g}, {_LARGEST:g}], got {value:g}; {why}, and beyond "
            "that they overflow"
        )


def require_not_negative(name: str, value: float, why: str) -> None:
    """The same, but zero is allowed, and what is nearly zero."""
    errors.require_not_negative(name, value, why)
    require_finite(name, max(value, 1.0), why)


def require_count(name: str, value: int) -> None:
    """Refuse what is no count of anything."""
    if not 1 <= value <= _MOST:
        raise InputError(f"{name} must be >= 1 and at most {_MOST}, got {value}; it is a count")


class Condition(NamedTuple):
    """Something a theorem asks for, and whether it is so."""

    condition: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The constants of Assumptions 1 to 6 and of Algorithm 1, each with its letter."""

    dim: int  # d
    strength: float  # σ
    clients: int  # N
    cohort: int  # S
    local_steps: int  # K
    rounds: int  # T
    noise_multiplier: float  # ν₁, noise stddev on the sum ÷ clip norm
    server_rate: float  # η_g
    smoothness: float  # β
    lipschitz: float  # L
    strong_convexity: float  # μ, read in the strongly convex case only
    gradient_variance: float  # ς²(σ), in the norm of A_σ⁻¹
    heterogeneity_g: float  # G
    heterogeneity_b: float  # B
    distance: float  # D_σ = ‖w⁰ − w*‖² in the norm of A_σ
    initial_gap: float  # F_0 = f(w⁰) − f(w*)

    def __post_init__(self) -> None:
        for name in ("dim", "clients", "cohort", "local_steps", "rounds"):
            require_count(name, getattr(self, name))
        for name in ("server_rate", "smoothness", "lipschitz", "distance", "initial_gap"):
            require_finite(name, getattr(self, name), "the bounds divide by it or vanish")
        for name in ("strength", "noise_multiplier", "gradient_variance", "heterogeneity_g"):
            require_not_negative(name, getattr(self, name), "see docs/theory.md for its meaning")
        if self.cohort > self.clients:
            raise InputError(
                f"cohort must be <= clients, got {self.cohort} of {self.clients}; "
                "clients are drawn without replacement"
            )
        if not 1 <= self.heterogeneity_b <= _LARGEST:
            raise InputError(
                f"heterogeneity_b must be in [1, {_LARGEST:g}], got {self.heterogeneity_b:g}; "
                "an average of squares is at least the square of the average (Assumption 1)"
            )
        if not 1 / _LARGEST <= self.strong_convexity <= self.smoothness:
            raise InputError(
                f"strong_convexity must be in (0, smoothness = {self.smoothness:g}], got "
                f"{self.strong_convexity:g}; for μ = 0 use the convex case"
            )

    @property
    def sampling_rate(self) -> float:
        """τ."""
        return self.cohort / self.clients

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """Λ_min."""
        return smallest_eigenvalue(self.dim, self.strength)

    @property
    def smoothed_convexity(self) -> float:
        """μ_σ = μ Λ_min, the strong convexity in the norm of A_σ (Lemma 8)."""
        return self.strong_convexity * self.smallest_eigenvalue

    def effective_dimension(self, case: Case) -> float:
        """d_σ where distances are measured in A_σ, d̃_σ in the non-convex case (Lemmas 5, 6)."""
        return effective_dimension(self.dim, self.strength, 2 if case == "non-convex" else 1)


class NoiseLevel(NamedTuple):
    """The summands of H_σ (H̃_σ in the non-convex case)."""

    variance: float
    heterogeneity: float
    privacy: float

    @property
    def total(self) -> float:
        """H_σ."""
        return sum(self)


class Bound(NamedTuple):
    """The parts of the error of a theorem, the step that gives them, and what must hold."""

    init: float
    heterogeneity: float
    variance: float
    privacy: float
    step: float  # η̃
    conditions: tuple[Condition, ...]

    @property
    def total(self) -> float:
        """Of E f(w̄) − f(w*), or of E‖∇f‖² in A_σ⁻¹ over the iterates in the non-convex case."""
        return self.init + self.heterogeneity + self.variance + self.privacy

    @property
    def holds(self) -> bool:
        """Whether the theorem says anything: all its conditions are met."""
        return all(condition.holds for condition in self.conditions)


def convergence(problem: Problem, case: Case, step: float | None = None) -> Bound:
    """The error terms of Theorem 4, 5 or 6, at the theorem's step or at the one given."""
    step = _best_step(problem, case) if step is None else step
    require_finite("step", step, "it is η_l η_g")
    reach = step * problem.local_steps  # how far a round moves for a unit gradient
    scale, drift = _factors(problem, case)
    level = noise_level(problem, case)
    return Bound(
        init=_initial_error(problem, case, reach),
        heterogeneity=drift * reach**2 + scale * reach * level.heterogeneity,
        variance=scale * reach * level.variance,
        privacy=scale * reach * level.privacy,
        step=step,
        conditions=_conditions(problem, case, step),
    )


def noise_level(problem: Problem, case: Case) -> NoiseLevel:
    """H_σ of Theorems 4 and 5; H̃_σ, with d̃_σ for d_σ, of Theorem 6."""
    p = problem
    per_step = 1 / p.server_rate**2 + 1 / p.cohort
    return NoiseLevel(
        variance=per_step * p.gradient_variance / p.local_steps,
        heterogeneity=4 * (1 - p.sampling_rate) * p.heterogeneity_g**2 / p.cohort,
        privacy=(p.lipschitz * p.noise_multiplier / p.cohort) ** 2 * p.effective_dimension(case),
    )


def largest_step(problem: Problem) -> float:
    """η̃ may not exceed Λ_min / (8 K β (1 + B²)), in all three theorems."""
    p = problem
    return p.smallest_eigenvalue / (8 * p.local_steps * p.smoothness * (1 + p.heterogeneity_b**2))


def averaging_ratio(problem: Problem, case: Case, step: float) -> float:
    """The r of a_t ∝ r^−t: 1 − μ_σ η̃ K/2 in Theorem 4, 1 (all alike) in Theorems 5 and 6."""
    if case != "strongly-convex":
        return 1.0
    return 1 - problem.smoothed_convexity * step * problem.local_steps / 2


def step_free_bound(problem: Problem, case: Case) -> float:
    """What the proofs conclude once η̃ is put in, with every constant: at least the total."""
    p = problem
    start, level, drift = _weights(p, case)
    slowest = 1 / (largest_step(p) * p.local_steps)
    if case == "strongly-convex":
        mu = p.smoothed_convexity
        reach = min(_noise_reach(p, level), 1 / slowest)
        # The exponential stays: where the largest step binds, no H_σ/(μ_σ T) covers it.
        init = 3 * mu * start * math.exp(-mu * p.rounds / (2 * slowest))
        return init + 3 * level / (mu * p.rounds) + 2 * reach * level + drift * reach**2
    init, root, cube = (2, 4, 3) if case == "convex" else (8, 12, 9)
    return (
        init * slowest * start / p.rounds
        + root * math.sqrt(start * level / p.rounds)
        + cube * (drift * start**2 / p.rounds**2) ** (1 / 3)
    )


def _best_step(problem: Problem, case: Case) -> float:
    """η̃ of the theorem: the noise's, the drift's, or the largest, whichever is least."""
    p = problem
    start, level, drift = _weights(p, case)
    if case == "strongly-convex":
        return min(_noise_reach(p, level) / p.local_steps, largest_step(p))
    by_noise = math.sqrt(start / (level * p.rounds)) if level else math.inf
    by_drift = (start / (drift * p.rounds)) ** (1 / 3) if drift else math.inf
    return min(by_noise / p.local_steps, by_drift / p.local_steps, largest_step(p))


def _weights(problem: Problem, case: Case) -> tuple[float, float, float]:
    """D_σ, H_σ and Q₁; in the non-convex case F_0, β H̃_σ and Q₂."""
    level = noise_level(problem, case).total
    _, drift = _factors(problem, case)
    if case == "non-convex":
        return problem.initial_gap, problem.smoothness * level, drift
    return problem.distance, level, drift


def _noise_reach(problem: Problem, level: float) -> float:
    """η̃K where noise decides in Theorem 4: 2 log(max(e, μ_σ² T D_σ / H_σ)) / (μ_σ T)."""
    mu, rounds = problem.smoothed_convexity, problem.rounds
    if level == 0:
        return math.inf
    return 2 * math.log(max(math.e, mu**2 * rounds * problem.distance / level)) / (mu * rounds)


def _factors(problem: Problem, case: Case) -> tuple[float, float]:
    """What multiplies η̃K·H_σ and (η̃K)²: 2 and Q₁ = 24βG², or 4β and Q₂ = 32β²G²."""
    beta, g = problem.smoothness, problem.heterogeneity_g
    if case == "non-convex":
        return 4 * beta, 32 * beta**2 * g**2
    return 2.0, 24 * beta * g**2


def _initial_error(problem: Problem, case: Case, reach: float) -> float:
    p = problem
    if case == "strongly-convex":
        mu = p.smoothed_convexity
        return 3 * mu * p.distance * math.exp(-mu * reach * p.rounds / 2)
    return (2 * p.distance if case == "convex" else 8 * p.initial_gap) / (reach * p.rounds)


def _conditions(problem: Problem, case: Case, step: float) -> tuple[Condition, ...]:
    p = problem
    found = [
        Condition(f"η_g ≥ 1: {p.server_rate:.4g}", p.server_rate >= 1),
        Condition(
            f"η̃ ≤ Λ_min/(8Kβ(1+B²)): {step:.4g} against {largest_step(p):.4g}",
            step <= largest_step(p) * (1 + 1e-12),
        ),
    ]
    if case == "strongly-convex":
        least = 1 / (p.smoothed_convexity * step * p.local_steps)
        said = f"T ≥ 1/(μ_σ η̃ K): {p.rounds} against {least:.6g}"
        found.append(Condition(said, p.rounds >= least * (1 - 1e-12)))
    return tuple(found)
