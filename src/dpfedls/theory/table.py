"""Table 1, row by row, as formulas that can be evaluated.

The table leaves out constants, logarithms in the cells that say so (‡), and everything it takes to
be one (β, D_σ, F_0). † is for full participation; * for like clients (G = 0) and many local steps.
Every row reads ς² from the problem: give ς²(0) for the methods without smoothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from dpfedls.theory.convergence import Problem


class Target(NamedTuple):
    """What a row of Table 1 needs beyond the problem."""

    epsilon: float  # ε of (ε, δ)-DP
    delta: float
    accuracy: float  # ϵ, the optimality gap
    samples: int = 1  # ñ, samples a client; DP-SRM only


Value: TypeAlias = Callable[[Problem, Target], float]


class Formula(NamedTuple):
    """A cell: as one writes it, and as one evaluates it."""

    text: str
    value: Value


class Row(NamedTuple):
    """A method; None where the paper has a dash."""

    part: Literal["utility", "communication"]
    method: str
    citation: str
    strongly_convex: Formula | None
    non_convex: Formula | None


def table_1(problem: Problem, target: Target) -> list[dict[str, str | float | None]]:
    """Every row of Table 1 with its two formulas and their values."""
    return [
        {
            "part": row.part,
            "method": row.method,
            "citation": row.citation,
            **_cell("strongly_convex", row.strongly_convex, problem, target),
            **_cell("non_convex", row.non_convex, problem, target),
        }
        for row in TABLE_1
    ]


def _cell(
    name: str, formula: Formula | None, problem: Problem, target: Target
) -> dict[str, str | float | None]:
    if formula is None:
        return {name: None, f"{name}_formula": None}
    return {name: formula.value(problem, target), f"{name}_formula": formula.text}


def _utility(dimension: float, p: Problem, t: Target) -> float:
    """√(d log(1/δ)) / (N ε)."""
    return math.sqrt(dimension * math.log(1 / t.delta)) / (p.clients * t.epsilon)


def _dp_sgd(p: Problem, t: Target) -> float:
    logs = math.log(p.clients / t.delta) ** 3
    return p.dim * logs / (p.strong_convexity * (p.clients * t.epsilon) ** 2)


def _dp_svrg(p: Problem, t: Target) -> float:
    return _utility(p.dim, p, t) ** 2 * math.log(p.clients) / p.strong_convexity


def _dp_fed_ls(p: Problem, t: Target) -> float:
    # log N where the paper prints log S: with Theorem 3's T, T/H_σ does not depend on S.
    squared = _utility(p.effective_dimension("strongly-convex"), p, t) ** 2
    return squared * math.log(p.clients) / p.smoothed_convexity


def _smoothed(p: Problem, t: Target) -> float:
    return _utility(p.effective_dimension("non-convex"), p, t)


def _li(p: Problem, t: Target) -> float:
    noise = p.gradient_variance / (p.clients * p.local_steps)
    drift = p.heterogeneity_g**2 * p.local_steps
    return (noise + drift) / (p.strong_convexity**2 * t.accuracy)


def _khaled(p: Problem, t: Target) -> float:
    spread = p.gradient_variance + p.heterogeneity_g**2
    noise = spread / (p.clients * p.local_steps * t.accuracy)
    drift = (math.sqrt(p.gradient_variance) + p.heterogeneity_g) / math.sqrt(t.accuracy)
    return (noise + drift + p.clients * p.heterogeneity_b**2) / p.strong_convexity


def _noise(p: Problem) -> float:
    """ς²/(S K) + (1−τ) G²/S."""
    sampling = (1 - p.sampling_rate) * p.heterogeneity_g**2
    return (p.gradient_variance / p.local_steps + sampling) / p.cohort


def _privacy(p: Problem, dimension: float) -> float:
    """d L² ν₁²/S²."""
    return dimension * (p.lipschitz * p.noise_multiplier / p.cohort) ** 2


def _convex_rounds(p: Problem, t: Target, noise: float, stiffness: float, mu: float) -> float:
    drift = p.heterogeneity_g / math.sqrt(t.accuracy)
    return (noise / t.accuracy + drift + stiffness * p.heterogeneity_b**2) / mu


def _non_convex_rounds(p: Problem, t: Target, noise: float, stiffness: float) -> float:
    drift = p.heterogeneity_g / t.accuracy**1.5
    return noise / t.accuracy**2 + drift + stiffness * p.heterogeneity_b**2 / t.accuracy


def _scaffold_convex(p: Problem, t: Target) -> float:
    return _convex_rounds(p, t, _noise(p), 1, p.strong_convexity)


def _scaffold_non_convex(p: Problem, t: Target) -> float:
    return _non_convex_rounds(p, t, _noise(p), 1)


def _rounds_convex(p: Problem, t: Target) -> float:
    noise = _noise(p) + _privacy(p, p.effective_dimension("strongly-convex"))
    return _convex_rounds(p, t, noise, 1 + 4 * p.strength, p.smoothed_convexity)


def _rounds_non_convex(p: Problem, t: Target) -> float:
    noise = _noise(p) + _privacy(p, p.effective_dimension("non-convex"))
    return _non_convex_rounds(p, t, noise, 1 + 4 * p.strength)


TABLE_1: tuple[Row, ...] = (
    Row(
        *("utility", "DP-SGD", "bassily:2014"),
        Formula("d log³(N/δ) / (μ N² ε²)", _dp_sgd),
        None,
    ),
    Row(
        *("utility", "DP-SVRG†", "wang2017differentially"),
        Formula("d log(N) log(1/δ) / (μ N² ε²)", _dp_svrg),
        Formula("√(d log(1/δ)) / (N ε)", lambda p, t: _utility(p.dim, p, t)),
    ),
    Row(
        *("utility", "DP-SRM", "wanglingxiao:2019"),
        None,
        Formula("√(d log(1/δ)) / (N ñ ε)", lambda p, t: _utility(p.dim, p, t) / t.samples),
    ),
    Row(
        *("utility", "DP-SGD-LS", "wang:2019"),
        None,
        Formula("√(d̃_σ log(1/δ)) / (N ε)", _smoothed),
    ),
    Row(
        *("utility", "DP-Fed-LS*", "this paper"),
        Formula("d_σ log(N) log(1/δ) / (μ_σ N² ε²)", _dp_fed_ls),
        Formula("√(d̃_σ log(1/δ)) / (N ε)", _smoothed),
    ),
    Row(
        *("communication", "Fed-Avg†", "li:2019"),
        Formula("ς²/(μ² N K ϵ) + G² K/(μ² ϵ)", _li),
        None,
    ),
    Row(
        *("communication", "Fed-Avg†", "khaled2020tighter"),
        Formula("(ς² + G²)/(μ N K ϵ) + (ς + G)/(μ √ϵ) + N B²/μ ‡", _khaled),
        None,
    ),
    Row(
        *("communication", "Fed-Avg", "karimireddy2020scaffold"),
        Formula("ς²/(μ S K ϵ) + (1−τ) G²/(μ S ϵ) + G/(μ √ϵ) + B²/μ ‡", _scaffold_convex),
        Formula("ς²/(S K ϵ²) + (1−τ) G²/(S ϵ²) + G/ϵ^(3/2) + B²/ϵ", _scaffold_non_convex),
    ),
    Row(
        *("communication", "DP-Fed-LS", "this paper"),
        Formula(
            "ς²/(μ_σ S K ϵ) + (1−τ) G²/(μ_σ S ϵ) + G/(μ_σ √ϵ) + (1+4σ) B²/μ_σ"
            " + d_σ L² ν₁²/(μ_σ S² ϵ) ‡",
            _rounds_convex,
        ),
        Formula(
            "ς²/(S K ϵ²) + (1−τ) G²/(S ϵ²) + G/ϵ^(3/2) + (1+4σ) B²/ϵ + d̃_σ L² ν₁²/(S² ϵ²)",
            _rounds_non_convex,
        ),
    ),
)
