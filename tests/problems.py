"""A problem of the convergence theory that tests share, and the ring written out."""

from __future__ import annotations

import dataclasses

import numpy as np

from dpfedls import theory

CASES = ("strongly-convex", "convex", "non-convex")
PROBLEM = theory.Problem(
    dim=1000,
    strength=1.0,
    clients=10_000,
    cohort=100,
    local_steps=5,
    rounds=50_000,
    noise_multiplier=2.0,
    server_rate=10.0,
    smoothness=2.0,
    lipschitz=3.0,
    strong_convexity=0.5,
    gradient_variance=0.7,
    heterogeneity_g=0.4,
    heterogeneity_b=1.5,
    distance=1.3,
    initial_gap=0.9,
)


def changed(problem=PROBLEM, **fields):
    return dataclasses.replace(problem, **fields)


def ring_matrix(dim, strength):
    """I + strength · L written out, neighbour by neighbour: right for 1 and 2 entries too."""
    matrix = np.eye(dim)
    for i in range(dim):
        for neighbour in ((i + 1) % dim, (i - 1) % dim):
            matrix[i, i] += strength
            matrix[i, neighbour] -= strength
    return matrix
