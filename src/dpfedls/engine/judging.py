"""How good a model is for each client, on its own samples: sensitive, and asked for a vote."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.parameters import Vector
from dpfedls.sampling import Indices

MOST = 100  # of a person's samples: more would cost time and hardly change the answer


@torch.no_grad()
def mean_losses(update: VmappedUpdate, keep: bool, params: Vector, clients: Indices) -> Tensor:
    """Each client's mean loss with these weights; NaN for clients without samples.

    Guarantee: a client's loss does not depend on who else is asked. Each is asked alone, since a
    model or a loss may mix the samples of a batch; and of a model and a loss that ``keep``
    something of what they saw each has copies, as in training.
    """
    model, loss = copy.deepcopy((update.model, update.loss))
    update.layout.write(params, model)
    model.to(update.local.dtype)
    losses = params.new_full((len(clients),), torch.nan)
    for place, j in enumerate(clients):
        start, size = int(update.data.starts[j]), min(int(update.data.sizes[j]), MOST)
        if size == 0:
            continue
        rows = torch.arange(start, start + size, device=params.device)
        features, targets = update.data.take(rows)
        own, its_loss = copy.deepcopy((model, loss)) if keep else (model, loss)
        losses[place] = its_loss(update._outputs(own, features), targets).float().mean()
    return losses
