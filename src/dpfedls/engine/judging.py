"""How good a model is for each client, on its own samples: sensitive, and asked for an answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.parameters import Vector
from dpfedls.sampling import Indices

MOST = 100  # of a person's samples: more would cost time and hardly change the answer


def mean_losses(update: VmappedUpdate, keep: bool, params: Vector, clients: Indices) -> Tensor:
    """Each client's mean loss with these weights; NaN for clients without samples."""
    losses = params.new_full((len(clients),), torch.nan)
    for place, _, loss in _judged(update, keep, params, clients):
        losses[place] = loss.detach()
    return losses


def mean_slopes(
    update: VmappedUpdate, keep: bool, params: Vector, clients: Indices, scores: int
) -> Tensor:
    """A row for each client: how its mean loss grows with log(scale) of the scores, and with each.

    All zeros for clients without samples.
    """
    rows = params.new_zeros(len(clients), 1 + scores)
    for place, outputs, loss in _judged(update, keep, params, clients):
        (slopes,) = torch.autograd.grad(loss, outputs)
        slopes, given = slopes.view(-1, scores), outputs.detach().view(-1, scores)
        rows[place] = torch.cat([(slopes * given).sum()[None], slopes.sum(dim=0)])
    return rows


def _judged(
    update: VmappedUpdate, keep: bool, params: Vector, clients: Indices
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Place, outputs and mean loss of each client that has samples.

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
        outputs = outputs.detach().requires_grad_()
        yield place, outputs, its_loss(outputs, targets).float().mean()
