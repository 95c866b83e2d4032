"""Divide one data set among people."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfedls.clients import ClientData
from dpfedls.errors import InputError


def iid(
    features: Tensor, targets: Tensor, num_clients: int, rng: np.random.Generator
) -> ClientData:
    """Shuffle, then deal out in equal shares; sizes differ by at most one."""
    samples = len(targets)
    if num_clients > samples:
        raise InputError(
            f"plan.num_clients = {num_clients}, but the data set has {samples} samples to deal "
            f"out, so someone would have none; use at most {samples} clients"
        )
    order = torch.from_numpy(rng.permutation(samples))
    bounds = np.linspace(0, samples, num_clients + 1).astype(np.int64)
    return ClientData(features[order], targets[order], bounds[:-1], np.diff(bounds))
