"""Small federations that tests share."""

from __future__ import annotations

import torch
from torch import nn

import dpfedls
from dpfedls.engine import choose
from dpfedls.people.clients import ClientData
from dpfedls.simulation import Simulation
from dpfedls.tasks.models import character_lstm, cnn, mlp

SIZES = (7, 1, 0, 12, 5, 12, 3)  # unequal, one sample, none


def model_and_data(kind: str, seed: int = 0) -> tuple[nn.Module, ClientData]:
    """A model of each family with clients of unequal sizes."""
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    shapes = {"linear": (6,), "mlp": (6,), "cnn": (3, 32, 32)}
    models = {
        "linear": lambda: nn.Linear(6, 3),
        "mlp": lambda: mlp(6, 8, 3),
        "cnn": lambda: cnn(width=1 / 16),
        "lstm": lambda: character_lstm(5, embedding=4, hidden=6, layers=2),
        "embedding": lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(4 * 9, 3)),
    }
    pairs = []
    for size in SIZES:
        if kind in shapes:
            features = torch.randn(size, *shapes[kind], generator=rng)
        else:
            features = torch.randint(5, (size, 9), generator=rng)
        pairs.append((features, torch.randint(3, (size,), generator=rng)))
    return models[kind](), ClientData.from_pairs(pairs)


def linear_clients(
    num_clients: int = 20, size: int = 6, seed: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Separable points for nn.Linear(4, 3)."""
    rng = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(3, 4, generator=rng)
    clients = []
    for _ in range(num_clients):
        labels = torch.randint(3, (size,), generator=rng)
        clients.append((centres[labels] + torch.randn(size, 4, generator=rng), labels))
    return clients


def plan(**changes: object) -> dpfedls.PrivacyPlan:
    """A plan for ``linear_clients``."""
    values: dict[str, object] = {
        "sampler": dpfedls.PoissonSampling(rate=0.4),
        "num_clients": 20,
        "rounds": 4,
        "clip_norm": 0.5,
        "noise_multiplier": 1.0,
        "delta": 1e-2,
    }
    return dpfedls.PrivacyPlan(**(values | changes))  # type: ignore[arg-type]


def local(**changes: object) -> dpfedls.LocalSGD:
    """Two epochs of batches of four."""
    values: dict[str, object] = {"epochs": 2, "batch_size": 4, "learning_rate": 0.2}
    return dpfedls.LocalSGD(**(values | changes))  # type: ignore[arg-type]


def start_model() -> nn.Module:
    """The same nn.Linear(4, 3) every time."""
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def federate(model, data, server, settings, streams, **changes):
    """A simulation of these parts."""
    return Simulation(choose(model, data, settings, **changes), server, streams)
