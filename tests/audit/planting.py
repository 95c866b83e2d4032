"""How a bug is planted, and the people among whom the audit looks for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from dpfedls import ClientData, FixedSizeSampling, PoissonSampling
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.tasks.task import Task
from federations import linear_clients

POISSON, FIXED = PoissonSampling(rate=0.3), FixedSizeSampling(cohort=12)
ADAPTIVE = {"clip_norm": AdaptiveClipping()}
MANY = {"trials": 100}


def people(num_clients=40):
    rng = np.random.default_rng(0)
    pairs = [
        tuple(part[: rng.integers(1, 7)] for part in pair) for pair in linear_clients(num_clients)
    ]
    torch.manual_seed(0)
    held = tuple(torch.cat(parts) for parts in zip(*linear_clients(9, seed=5), strict=True))
    data = ClientData.from_pairs([(x[: len(y)], y[: len(x)]) for x, y in pairs])
    return Task(data, nn.Linear(4, 3), held)


def wrap(patch, owner, name, change):
    """Replace a function by one that is given the real one first."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **named: change(real, *args, **named))
