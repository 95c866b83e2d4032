"""The work that every system is given, as data. NumPy only: the same in every environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Workload:
    """A federation and how it trains; ``rounds`` is how many are timed in one process."""

    name: str
    model: str  # a name in runners/models.py
    clients: int
    samples: int  # a client
    inputs: tuple[int, ...]  # the shape of one sample
    classes: int
    cohort: int
    epochs: int
    rounds: int
    symbols: bool = False  # characters, not floats
    batch: int = 10
    learning_rate: float = 0.1
    clip_norm: float = 0.3
    noise_multiplier: float = 1.0
    strength: float = 1.0  # of the smoothing


def _logistic(cohort: int, rounds: int) -> Workload:
    """Section 6.1 of the paper: 784 → 10, 1000 clients of 50 samples."""
    return Workload(f"logistic-{cohort}", "logistic", 1000, 50, (784,), 10, cohort, 5, rounds)


WORKLOADS = {
    workload.name: workload
    for workload in (
        _logistic(20, rounds=20),
        _logistic(50, rounds=10),
        _logistic(200, rounds=5),
        _logistic(1000, rounds=2),
        Workload("mlp", "mlp", 1000, 50, (784,), 10, cohort=20, epochs=5, rounds=5),
        Workload("cnn", "cnn", 100, 40, (3, 32, 32), 10, cohort=20, epochs=1, rounds=5),
        Workload("lstm", "lstm", 100, 40, (80,), 80, cohort=10, epochs=1, rounds=4, symbols=True),
        Workload("gelu-mlp", "gelu-mlp", 1000, 50, (784,), 10, cohort=20, epochs=5, rounds=5),
        Workload("resnet-8", "resnet-8", 100, 20, (3, 32, 32), 10, cohort=10, epochs=1, rounds=4),
        Workload("transformer", "transformer", 100, 40, (32,), 80, 20, 1, rounds=4, symbols=True),
        Workload("gru", "gru", 100, 40, (80,), 80, cohort=10, epochs=1, rounds=4, symbols=True),
    )
}


def draw(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Features (clients, samples, …) and targets (clients, samples); time depends on no value."""
    rng = np.random.default_rng(0)
    people = (workload.clients, workload.samples)
    shape = (*people, *workload.inputs)
    if workload.symbols:
        features = rng.integers(workload.classes, size=shape)
    else:
        features = rng.random(shape, dtype=np.float32)
    return features, rng.integers(workload.classes, size=people)
