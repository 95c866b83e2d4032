"""All audits of one recipe, together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dpfedls.audit.canary import FEWEST, CanaryAudit, audit_canaries
from dpfedls.audit.cohorts import audit_cohorts
from dpfedls.audit.gdp import audit_round, check_auditable, run_epsilon
from dpfedls.audit.replay import audit_replay
from dpfedls.randomness import RandomStreams, SeededStreams, SystemStreams
from dpfedls.runs.recipe import Recipe, built
from dpfedls.runs.simulate import prepare
from dpfedls.tasks.task import make_task

NOTE = (
    "Passing proves nothing: these attacks found no more leakage than the plan claims, and a "
    "better attack might. A failure means that the claim is wrong, unless it is one of about "
    "three false alarms in a hundred audits: repeat it with another --seed."
)


def audit_recipe(
    recipe: Recipe,
    trials: int = 2000,
    canaries: int | None = None,
    watch: Callable[[int, str], None] = lambda done, note: None,
) -> dict[str, Any]:
    """What ``dpfedls audit`` answers; ``watch`` counts trials, then the canary run's rounds."""
    recipe = recipe.resolved()
    plan = recipe.plan
    check_auditable(plan, trials)
    streams = streams_of(recipe)
    replayed = audit_replay(plan, recipe.seed)
    cohorts = audit_cohorts(plan, streams)
    one = audit_round(plan, streams, trials, watch=lambda k: watch(k, "one round, many times"))
    claimed = plan.epsilon()
    canaried = canary_run(recipe, canaries, lambda t: watch(trials + t, "training with canaries"))
    problems = [*replayed, *cohorts.problems]
    if not one.consistent:
        problems.append(f"one round shows μ >= {one.mu_lower:.4g}, claimed {one.mu_claimed:.4g}")
    problems += [
        f"canaries show ε >= {found.epsilon_lower:.4g} in {found.seen}, claimed {claimed:.4g}"
        for found in canaried
        if found.epsilon_lower > claimed
    ]
    return {
        "mu_lower": one.mu_lower,
        "mu_claimed": one.mu_claimed,
        "epsilon_lower": run_epsilon(plan, one.mu_lower),
        "epsilon_claimed": claimed,
        "delta": plan.target_delta,
        "consistent": not problems,
        "confidence": one.confidence,
        "problems": problems,
        "relation": plan.relation,
        "rounds": plan.rounds,
        "round": msgspec.to_builtins(one),
        "replay": {"problems": replayed, "false_alarms": 0.0},
        "cohorts": msgspec.to_builtins(cohorts),
        "canary": msgspec.to_builtins(canaried),
        "note": NOTE,
    }


def streams_of(recipe: Recipe) -> RandomStreams:
    """The randomness that a run of the recipe would use."""
    return SystemStreams() if recipe.mode == "deployed" else SeededStreams(recipe.seed)


def canary_run(
    recipe: Recipe, count: int | None = None, watch: Callable[[int], None] = lambda _: None
) -> list[CanaryAudit]:
    """Train the recipe once with canaries among its clients; none is no run."""
    if count == 0:
        return []
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    simulation, model = prepare(recipe, task, built(recipe.denoiser))
    server, layout = simulation.server, simulation.server.layout
    if count is None:
        # Canaries are each other's noise: k of them in d dimensions show no more than μ = √(d/k).
        count = max(FEWEST, min(500, recipe.plan.num_clients // 2, layout.dim // 4))
    return audit_canaries(simulation, server.start(layout.read(model)), count, recipe.seed, watch)
