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
def mean_losses(update: VmappedUpdate, keeps: bool, params: Vector, clients: Indices) -> Tensor:
    """Each client's mean loss with these weights; NaN for clients without samples.

    Guarantee: a client's loss does not depend on who else is asked. Each is asked alone, since a
    model or a loss may mix the samples of a batch; and of a model that ``keeps`` something of what
    it saw each has a copy, as in training.
    """
    model = copy.deepcopy(update.model)
    update.layout.write(params, model)
    model.to(update.local.dtype)
    losses = params.new_full((len(clients),), torch.nan)
    for place, j in enumerate(clients):
        start, size = int(update.data.starts[j]), min(int(update.data.sizes[j]), MOST)
        if size == 0:
            continue
        rows = torch.arange(start, start + size, device=params.device)
        features, targets = update.data.take(rows)
        outputs = update._outputs(copy.deepcopy(model) if keeps else model, features)
        losses[place] = update.loss(outputs, targets).float().mean()
    return losses
