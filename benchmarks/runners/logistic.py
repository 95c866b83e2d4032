"""Logistic regression with its gradient written out, in NumPy: no autograd to pay for.

Flower's clients may be written in anything, and for this model this is their fastest.
"""

from __future__ import annotations

import numpy as np
from workloads import Workload


def train(
    centre: list[np.ndarray], features: np.ndarray, targets: np.ndarray, workload: Workload
) -> list[np.ndarray]:
    """One client's SGD from weight and bias, back onto the ball after every step."""
    weight, bias = (array.copy() for array in centre)
    wanted = np.eye(workload.classes, dtype=np.float32)[targets]
    for _ in range(workload.epochs):
        order = np.random.default_rng().permutation(workload.samples)
        for start in range(0, workload.samples, workload.batch):
            rows = order[start : start + workload.batch]
            x = features[rows]
            scores = x @ weight.T + bias
            step = np.exp(scores - scores.max(axis=1, keepdims=True))
            step /= step.sum(axis=1, keepdims=True)
            step -= wanted[rows]
            step *= workload.learning_rate / len(rows)
            weight -= step.T @ x
            bias -= step.sum(axis=0)
            moved = [weight - centre[0], bias - centre[1]]
            length = np.sqrt(sum(float(np.vdot(part, part)) for part in moved))
            if length > workload.clip_norm:
                inside = np.float32(workload.clip_norm / length)
                weight, bias = (c + inside * part for c, part in zip(centre, moved, strict=True))
    return [weight, bias]
