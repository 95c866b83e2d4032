"""``dpfedls theory``: what the paper's theorems say for given numbers."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedls.commands.output import Json, answer, pairs
from dpfedls.errors import InputError

if TYPE_CHECKING:
    from dpfedls.theory import Bound, Budget, Problem

ROUNDS, NOISE_MULTIPLIER = 20_000, 2.0  # where neither an option nor a budget says


class Case(StrEnum):
    """What is known of the loss."""

    STRONGLY_CONVEX = "strongly-convex"
    CONVEX = "convex"
    NON_CONVEX = "non-convex"


def theory(
    case: Annotated[Case, typer.Option(help="What is known of the loss: Theorem 4, 5 or 6.")],
    dim: Annotated[int, typer.Option(help="d: parameters of the model.")] = 7850,
    strength: Annotated[float, typer.Option(help="σ of the smoothing; 0 is DP-Fed.")] = 1.0,
    clients: Annotated[int, typer.Option(help="N: people.")] = 100_000,
    cohort: Annotated[int, typer.Option(help="S: people in a round.")] = 1000,
    local_steps: Annotated[int, typer.Option(help="K: SGD steps of a client in a round.")] = 10,
    rounds: Annotated[int | None, typer.Option(help=f"T; {ROUNDS} without --epsilon.")] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help=f"ν₁: noise stddev ÷ clip norm; {NOISE_MULTIPLIER:g} without --epsilon."),
    ] = None,
    server_rate: Annotated[float | None, typer.Option(help="η_g; √cohort where absent.")] = None,
    smoothness: Annotated[float, typer.Option(help="β of every client's loss.")] = 1.0,
    lipschitz: Annotated[float, typer.Option(help="L: bound on gradients.")] = 1.0,
    strong_convexity: Annotated[float, typer.Option(help="μ; strongly convex case.")] = 0.1,
    gradient_variance: Annotated[float, typer.Option(help="ς²(σ) of mini-batches.")] = 1.0,
    heterogeneity_g: Annotated[float, typer.Option(help="G: how unlike the clients are.")] = 0.5,
    heterogeneity_b: Annotated[float, typer.Option(help="B ≥ 1: the same, relative.")] = 1.0,
    distance: Annotated[float, typer.Option(help="D_σ: ‖w⁰ − w*‖² in the norm of A_σ.")] = 1.0,
    initial_gap: Annotated[float, typer.Option(help="F_0: f(w⁰) − f(w*), non-convex case.")] = 1.0,
    epsilon: Annotated[
        float | None,
        typer.Option(help="ε: Theorem 1 gives the noise, or the rounds, or both (Theorem 3)."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ; clients^-1.1 where absent.")] = None,
    lambda_: Annotated[
        float | None, typer.Option("--lambda", help="λ of Theorem 1; the best one where absent.")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Also the rounds to reach this gap (Corollary 1).")
    ] = None,
    json: Json = False,
) -> None:
    """The error bound of the paper, part by part: start, unlike clients, mini-batches, privacy."""
    from dpfedls.theory import Problem, communication, convergence, settle
    from dpfedls.theory.convergence import require_count

    require_count("--clients", clients)
    if not 1 <= cohort <= clients:
        raise InputError(f"--cohort must be from 1 to --clients = {clients}, got {cohort}")
    if epsilon is None and (delta is not None or lambda_ is not None):
        raise InputError(
            "--delta and --lambda mean nothing without --epsilon; give it, or drop them"
        )
    budget, chosen_delta = None, clients**-1.1 if delta is None else delta
    if epsilon is not None:
        budget = settle(
            epsilon,
            chosen_delta,
            clients=clients,
            cohort=cohort,
            lipschitz=lipschitz,
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            lambda_=lambda_,
        )
        rounds, noise_multiplier = budget.rounds, budget.noise_multiplier
    problem = Problem(
        dim=dim,
        strength=strength,
        clients=clients,
        cohort=cohort,
        local_steps=local_steps,
        rounds=ROUNDS if rounds is None else rounds,
        noise_multiplier=NOISE_MULTIPLIER if noise_multiplier is None else noise_multiplier,
        server_rate=math.sqrt(cohort) if server_rate is None else server_rate,
        smoothness=smoothness,
        lipschitz=lipschitz,
        strong_convexity=strong_convexity,
        gradient_variance=gradient_variance,
        heterogeneity_g=heterogeneity_g,
        heterogeneity_b=heterogeneity_b,
        distance=distance,
        initial_gap=initial_gap,
    )
    values = _values(problem, case, convergence(problem, case.value), budget)
    if budget is not None:
        values |= {"epsilon": epsilon, "delta": chosen_delta}
    if accuracy is not None:
        terms = communication(problem, case.value, accuracy)
        values["communication"] = terms | {"total": sum(terms.values())}
    answer(values, json, _text(values))


def _values(problem: Problem, case: Case, bound: Bound, budget: Budget | None) -> dict[str, Any]:
    from dpfedls.theory import Condition, averaging_ratio, effective_dimension, round_constant

    local_rate = bound.step / problem.server_rate
    conditions = bound.conditions
    if budget is not None:  # what Theorem 3 asks for beyond Theorems 4 to 6
        rate, least = problem.server_rate, math.sqrt(problem.cohort)
        large = Condition(f"η_g ≥ √S: {rate:.4g} against {least:.4g}", rate >= least)
        conditions += (*budget.conditions, large)
    values: dict[str, Any] = {
        "case": case.value,
        "init": bound.init,
        "heterogeneity": bound.heterogeneity,
        "variance": bound.variance,
        "privacy": bound.privacy,
        "total": bound.total,
        "rounds": problem.rounds,
        "noise_multiplier": problem.noise_multiplier,
        "effective_dimension": effective_dimension(problem.dim, problem.strength),
        "effective_dimension_squared": effective_dimension(problem.dim, problem.strength, 2),
        "smallest_eigenvalue": problem.smallest_eigenvalue,
        "smoothed_convexity": problem.smoothed_convexity,
        "step": bound.step,
        "local_rate": local_rate,
        "server_rate": problem.server_rate,
        "clip_norm": local_rate * problem.local_steps * problem.lipschitz,
        "averaging": averaging_ratio(problem, case.value, bound.step),
    }
    if budget is not None:
        values |= {"lambda": budget.lambda_, "alpha": budget.alpha}
        values["round_constant"] = round_constant(budget.lambda_)
    values["holds"] = all(condition.holds for condition in conditions)
    values["conditions"] = [condition._asdict() for condition in conditions]
    return values


def _text(values: dict[str, Any]) -> str:
    plain = [key for key in values if key not in ("conditions", "communication", "holds")]
    marks = {True: "met    ", False: "NOT met"}
    lines = [pairs(values, plain), ""]
    lines += [f"{marks[c['holds']]}  {c['condition']}" for c in values["conditions"]]
    if "communication" in values:
        terms = values["communication"]
        lines += ["", "rounds to that gap, up to constants:", pairs(terms, list(terms))]
    return "\n".join(lines)
