"""How good a model is for each client, on its own samples: sensitive, and asked for an answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.parameters import Vector
from dpfedls.people.losses import Loss
from dpfedls.people.rescale import slopes_of
from dpfedls.sampling import Indices

MOST = 100  # of a person's samples: more would cost time and hardly change the answer


@torch.no_grad()
def mean_losses(update: VmappedUpdate, keep: bool, params: Vector, clients: Indices) -> Tensor:
    """Each client's mean loss with these weights; NaN for clients without samples."""
    losses = params.new_full((len(clients),), torch.nan)
    for place, outputs, loss, targets in _judged(update, keep, params, clients):
        losses[place] = loss(outputs, targets).float().mean()
    return losses


def mean_slopes(
    update: VmappedUpdate, keep: bool, params: Vector, clients: Indices, scores: int
) -> Tensor:
    """A row for each client: how its mean loss grows with log(scale) of the scores, and with each.

    All zeros for clients without samples.
    """
    rows = params.new_zeros(len(clients), 1 + scores)
    for place, outputs, loss, targets in _judged(update, keep, params, clients):
        rows[place] = slopes_of(loss, outputs, targets, scores)
    return rows


def _judged(
    update: VmappedUpdate, keep: bool, params: Vector, clients: Indices
) -> Iterator[tuple[int, Any, Loss, Tensor]]:
    """Place, outputs, loss and targets of each client that has samples.

    Guarantee: they do not depend on who else is asked. Each is asked alone, since a model or a loss
    may mix the samples of a batch; and of a model and a loss that ``keep`` something of what they
    saw each has copies, as in training.
    """
    model, loss = copy.deepcopy((update.model, update.loss))
    update.layout.write(params, model)
    model.to(update.local.dtype)
    for place, j in enumerate(clients):
        start, size = int(update.data.starts[j]), min(int(update.data.sizes[j]), MOST)
        if size == 0:
            continue
        rows = torch.arange(start, start + size, device=params.device)
        features, targets = update.data.take(rows)
        own, its_loss = copy.deepcopy((model, loss)) if keep else (model, loss)
        with torch.no_grad():
            outputs = update._outputs(own, features)
        yield place, outputs, its_loss, targets
