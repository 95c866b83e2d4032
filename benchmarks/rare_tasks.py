"""Tasks for foreign.py: one class is frequent and people have few rows; models that scale inputs.

They show why a clip norm may only fall slowly (auto.by_model), and why a model is tried on random
numbers where its first layer reads them (auto.rate). Both rules were made on tasks of this kind.
"""

from __future__ import annotations

from collections.abc import Callable

import foreign_tasks
import numpy as np
import torch
from torch import Tensor, nn

from dpfedls import Task

_task, _equal = foreign_tasks._task, foreign_tasks._equal


def _clusters(
    rng: np.random.Generator, labels: np.ndarray, classes: int, apart: float
) -> tuple[Tensor, Tensor]:
    """Ten columns of unit noise around a centre for each class."""
    centres = rng.normal(size=(classes, 10))
    centres *= apart / np.linalg.norm(centres, axis=1, keepdims=True)
    x = centres[labels] + rng.normal(size=(len(labels), 10))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels)


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def rare_one(rng: np.random.Generator) -> Task:
    """8 % of 6,000 people with one row each belong to the rarer of two classes, MLP."""
    labels = (rng.random(6000 + 6000) < 0.08).astype(np.int64)
    return _task(*_clusters(rng, labels, 2, 2.6), _equal(6000, 1), _mlp(10, 2))


def rare_five(rng: np.random.Generator) -> Task:
    """5 % of the rows of 2,000 people with five each belong to the rarer of two classes, MLP."""
    labels = (rng.random(10000 + 6000) < 0.05).astype(np.int64)
    return _task(*_clusters(rng, labels, 2, 2.8), _equal(2000, 5), _mlp(10, 2))


def rare_people(rng: np.random.Generator) -> Task:
    """6 % of 1,000 people have all rows of the rarer of two classes, 20 rows each, MLP."""
    own = np.repeat((rng.random(1000) < 0.06).astype(np.int64), 20)
    labels = np.concatenate([own, (rng.random(6000) < 0.06).astype(np.int64)])
    return _task(*_clusters(rng, labels, 2, 2.2), _equal(1000, 20), _mlp(10, 2))


def rare_many(rng: np.random.Generator) -> Task:
    """73 % of 10,000 people with one row each belong to the first of ten classes, MLP."""
    shares = [0.73] + [0.03] * 9
    labels = rng.choice(10, size=10000 + 6000, p=shares)
    return _task(*_clusters(rng, labels, 10, 3.0), _equal(10000, 1), _mlp(10, 10))


class _Scales(nn.Module):
    """Takes raw columns and standardises them by constants that it holds."""

    def __init__(self, mean: Tensor, deviation: Tensor, inner: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner((x - self.mean) / self.deviation)


def scales_itself(rng: np.random.Generator) -> Task:
    """Raw columns that the model standardises itself, 1,000 people with 15 rows, MLP."""
    labels = rng.integers(4, size=15000 + 6000)
    x, y = _clusters(rng, labels, 4, 2.5)
    scale = torch.from_numpy(10.0 ** rng.uniform(-3, 3, size=10)).float()
    x = scale * (x + torch.from_numpy(rng.normal(size=10, scale=5)).float())
    return _task(x, y, _equal(1000, 15), _Scales(x.mean(0), x.std(0), _mlp(10, 4)))


TASKS: dict[str, Callable[[np.random.Generator], Task]] = {
    maker.__name__: maker for maker in (rare_one, rare_five, rare_people, rare_many, scales_itself)
}
