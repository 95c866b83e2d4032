"""Votes of real people, each held against the loss of that person's own samples."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import nn

from dpfedls.auditing.boundary import boundary
from dpfedls.auditing.instruments import Record, observed
from dpfedls.auditing.stall import first_asked
from dpfedls.auditing.worlds import Watched, altered, hostile
from dpfedls.denoising import AnyCallable
from dpfedls.parameters import Layout
from dpfedls.people.losses import Loss
from dpfedls.people.precision import computing_in, to_precision
from dpfedls.people.samples import Samples, each
from dpfedls.runs.fitting import units_of
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.simulate import prepare
from dpfedls.tasks.task import Task

_ROUNDS = 4  # of which the second and the fourth vote
_SAMPLES = 100  # of a person: the first ones


def vote_problems(
    recipe: Recipe, task: Task, denoiser: AnyCallable, person: int
) -> dict[str, list[str]]:
    """A few rounds of real trainings and votes, one of the people hostile; {} without votes.

    They begin just before the first vote of the run, with the first model.
    """
    first = first_asked(recipe)
    if first is None:
        return {}
    record, task = Record(), altered(task, person)
    simulation, model = prepare(recipe, task, copy.deepcopy(denoiser))
    simulation = observed(simulation, record, hostile(person))
    state = simulation.server.start(simulation.server.layout.read(model))
    state = replace(state, round=first - 1)
    for _ in range(_ROUNDS):
        state = simulation.run_round(state)
    problems = boundary(recipe.plan, record).problems
    if not any(seen.losses for seen in record):
        problems.append("nobody is asked in a round in which people vote")
    own = own_loss_problems(Watched(recipe, task, denoiser, record), person)
    return {"votes": problems + own}


def own_loss_problems(watched: Watched, but: int) -> list[str]:
    """The losses that votes were made of, each against the person's own by a plain call.

    One person is left out, whose samples are so large that their loss follows the order of a sum.
    """
    dtype, task = watched.recipe.local.dtype, watched.task
    people = task.data.in_units(units_of(watched.recipe, task))
    room = math.sqrt(torch.finfo(dtype).eps)
    for params, clients, losses in (asked for seen in watched.record for asked in seen.losses):
        model = copy.deepcopy(task.model)
        Layout.of(model).write(params, model)
        model.to(dtype)
        for j, found in zip(clients.tolist(), losses.tolist(), strict=True):
            own = math.nan if j == but else _own_loss(people.client(j), model, task.loss, dtype)
            if math.isfinite(own) and not abs(found - own) <= room * (1 + abs(own)):
                return ["the loss that a person votes by is not that of their own samples"]
    return []


@torch.no_grad()
def _own_loss(samples: Samples, model: nn.Module, loss: Loss, dtype: torch.dtype) -> float:
    x, y = each(lambda values: values[:_SAMPLES], samples)
    if len(y) == 0:
        return math.nan
    with computing_in(dtype):
        outputs = to_precision(model(to_precision(x, dtype)), torch.float32)
    return float(loss(outputs, y).double().mean())
