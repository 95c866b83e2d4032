"""Whole runs with a hostile person, without them, and deployed until a budget ends them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import torch

from dpfedls.auditing.accounting import delta_at
from dpfedls.auditing.boundary import boundary, fresh_problems
from dpfedls.auditing.instruments import Record
from dpfedls.auditing.payments import payment_problems, too_small
from dpfedls.auditing.public import leaving_problems, neighbour_problems
from dpfedls.auditing.worlds import World, altered, hostile, negated, run_world
from dpfedls.clipping import Bound
from dpfedls.denoising import AnyCallable
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.simulate import prepare
from dpfedls.sampling import FixedSizeSampling
from dpfedls.tasks.task import Task

_BLOCK = 6  # people whose data is altered, one after another


def whole_run_problems(
    recipe: Recipe, task: Task, denoiser: AnyCallable, place: Path, drawn: Record, person: int
) -> dict[str, list[str]]:
    """Two worlds that differ in one person, and a deployed run that a budget ends."""
    replaced = isinstance(recipe.plan.sampler, FixedSizeSampling)
    attack = hostile(person)
    one = run_world(recipe, altered(task, person), denoiser, place / "one", attack)
    other = (
        run_world(recipe, task, denoiser, place / "other", negated(attack, (person,)))
        if replaced
        else run_world(recipe, task, denoiser, place / "other", absent=(person,))
    )
    limited = msgspec.structs.replace(deployed(recipe), budget=_budget(recipe.plan))
    last = run_world(limited, altered(task, person), denoiser, place / "deployed", attack)
    problems: dict[str, list[str]] = {}
    for name, world in {"a run": one, "the neighbour's run": other, "a deployed run": last}.items():
        seen = boundary(recipe.plan, world.record, world.absent)
        problems[f"{name}, releases"] = seen.problems + fresh_problems(world.record)
        problems[f"{name}, payments"] = payment_problems(world, seen.noise_multiplier)
        problems[f"{name}, what leaves"] = leaving_problems(world)
    problems["two neighbours' runs"] = neighbour_problems(one, other) + _others(one, other, person)
    if any(not np.array_equal(r.cohort, drawn[r.number].cohort) for r in one.record):
        problems["two neighbours' runs"].append("after a crash other cohorts are drawn")
    problems["a deployed run, budget"] = _budget_problems(last)
    return problems


def _others(one: World, other: World, person: int) -> list[str]:
    """In the first round both worlds have one model and one cohort: nobody else may notice."""
    rows = []
    for world in (one, other):
        first = next(iter(world.record))
        sent = [row for rows_ in first.rows for row in rows_]
        rows.append({int(j): row for j, row in zip(first.trained, sent, strict=True)})
    shared = (rows[0].keys() & rows[1].keys()) - {person}
    if (rows[0].keys() ^ rows[1].keys()) - {person}:
        return ["who else trains depends on one person"]
    for j in shared:
        room = 1e-4 * float(rows[1][j].abs().max()) + 1e-12
        if not float((rows[0][j] - rows[1][j]).abs().max()) <= room:
            return ["one person's data changes another person's update"]
    return []


def company_problems(
    recipe: Recipe, task: Task, denoiser: AnyCallable, record: Record
) -> list[str]:
    """Whoever of a block has other data: nobody else's update or last answer may change."""
    block = next((seen.cohort for seen in record if len(seen.cohort) > 1), np.arange(0))[:_BLOCK]
    updates, answers = [], []
    for person in (None, *block.tolist()):
        changed = task if person is None else altered(task, person)
        simulation, model = prepare(recipe, changed, denoiser)
        server = simulation.server
        params = server.broadcast(server.start(server.layout.read(model)))
        norm = recipe.plan.clipping.start
        updates.append(simulation.engine.update(params, block, 0, 1, norm))
        if server.rescaling is not None:
            last = Bound(norm, question=server.rescaling.question)
            answers.append(simulation.engine.answers(params, block, last))
    return [
        f"one person's data changes another person's {what}"
        for what, made in (("update", updates), ("answer", answers))
        if made and _changed_by_others(made)
    ]


def _changed_by_others(made: list[torch.Tensor]) -> bool:
    """Whether a row differs from the first table's where another person has other data."""
    room = 1e-4 * float(made[0].abs().max()) + 1e-12
    for k, rows in enumerate(made[1:]):
        others = torch.arange(len(rows)) != k
        if not float((rows - made[0])[others].abs().max()) <= room:
            return True
    return False


def _budget(plan: PrivacyPlan) -> float:
    """An ε that covers all rounds but the last, by the second opinion, with little to spare."""
    enough = max(1, plan.rounds - 1)
    least, most = 0.0, 1.0
    arguments = (plan.sampler, plan.num_clients, plan.noise, enough)
    while delta_at(most, *arguments) > plan.target_delta:
        most *= 2
    for _ in range(25):
        middle = (least + most) / 2
        above = delta_at(middle, *arguments) > plan.target_delta
        least, most = (middle, most) if above else (least, middle)
    return most * 1.001


def _budget_problems(world: World) -> list[str]:
    released, lost = len(list(world.record)), len(world.record.lost)
    if too_small(world, world.recipe.budget, released + lost, world.recipe.plan.noise):
        return [f"{released} rounds were released and {lost} lost, more than the budget covers"]
    if released == 0:
        return ["nothing was released although the budget covers rounds"]
    return []


def deployed(recipe: Recipe) -> Recipe:
    """The same with noise from the operating system."""
    return msgspec.structs.replace(recipe, mode="deployed")
