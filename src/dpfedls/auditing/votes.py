"""What people answered where they were asked, from their losses: sensitive, and each one's own."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from dpfedls.auditing.instruments import Round
from dpfedls.auditing.worlds import World
from dpfedls.parameters import Layout, Vector
from dpfedls.people.precision import computing_in, to_precision
from dpfedls.people.samples import each

_SAMPLES = 100  # of a person: the first ones


def votes(seen: Round) -> np.ndarray:
    """Who has less loss with the model than with the earlier one, of those who trained."""
    now, then = (_losses(seen, params) for params in (seen.start, seen.bounds[0].earlier))
    return np.array([now.get(j, math.nan) < then.get(j, math.nan) for j in seen.trained.tolist()])


def _losses(seen: Round, params: Vector | None) -> dict[int, float]:
    return {
        j: loss
        for given, clients, losses in seen.losses
        if params is not None and torch.equal(given, params)
        for j, loss in zip(clients.tolist(), losses.tolist(), strict=True)
    }


def vote_problems(world: World, but: int) -> list[str]:
    """The losses that votes were made of, each against the person's own by a plain call.

    One person is left out, whose samples are so large that their loss follows the order of a sum.
    """
    room = math.sqrt(torch.finfo(world.recipe.local.dtype).eps)
    for params, clients, losses in (asked for seen in world.record for asked in seen.losses):
        for j, found in zip(clients.tolist(), losses.tolist(), strict=True):
            own = math.nan if j == but else _own_loss(world, params, j)
            if math.isfinite(own) and not abs(found - own) <= room * (1 + abs(own)):
                return ["the loss that a person votes by is not that of their own samples"]
    return []


@torch.no_grad()
def _own_loss(world: World, params: Vector, person: int) -> float:
    model, dtype = copy.deepcopy(world.task.model), world.recipe.local.dtype
    Layout.of(model).write(params, model)
    x, y = each(lambda values: values[:_SAMPLES], world.task.data.client(person))
    if len(y) == 0:
        return math.nan
    with computing_in(dtype):
        outputs = to_precision(model.to(dtype)(to_precision(x, dtype)), torch.float32)
    return float(world.task.loss(outputs, y).double().mean())
