"""How good a model is for each client, on its own samples: sensitive, and asked for a vote."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.parameters import Vector
from dpfedls.people.calling import call_with
from dpfedls.sampling import Indices

MOST = 100  # of a person's samples: more would cost time and hardly change the answer
_AT_ONCE = 2**9  # samples: a large model's activations of more would take gigabytes


@torch.no_grad()
def mean_losses(update: VmappedUpdate, params: Vector, clients: Indices) -> Tensor:
    """Each client's mean loss with these weights; NaN for who has no samples."""
    sizes = np.minimum(update.data.sizes[clients], MOST)
    parts = np.split(clients, np.flatnonzero(np.diff(np.cumsum(sizes) // _AT_ONCE)) + 1)
    return torch.cat([_of_a_part(update, params, part) for part in parts])


def _of_a_part(update: VmappedUpdate, params: Vector, clients: Indices) -> Tensor:
    sizes = np.minimum(update.data.sizes[clients], MOST)
    owners = np.repeat(np.arange(len(clients)), sizes)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = update.data.starts[clients][owners] + places
    means = params.new_zeros(len(clients))
    if len(rows):
        features, targets = update.data.take(torch.from_numpy(rows).to(params.device))
        tensors = {**update.constants, **update.layout.split(params.to(update.local.dtype))}
        outputs = update._outputs(lambda x: call_with(update.model, tensors, x), features)
        losses = update.loss(outputs, targets).to(means)
        means.index_add_(0, torch.from_numpy(owners).to(params.device), losses)
    return means / torch.from_numpy(sizes).to(means)
