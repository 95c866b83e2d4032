"""Plain sequential torch: one resident model, one client after another. No framework."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from workloads import WORKLOADS, Workload, draw

from runners.measure import Rounds, parser
from runners.models import make_model


class FlatModel:
    """A model whose weights and gradients are views of one vector each.

    So a step of SGD and the projection are one operation, not one a tensor.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        parameters = list(model.parameters())
        self.sizes = [p.numel() for p in parameters]
        self.weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.weights)
        pieces = zip(self.weights.split(self.sizes), self.gradient.split(self.sizes), strict=True)
        for parameter, (weight, gradient) in zip(parameters, pieces, strict=True):
            parameter.data = weight.view_as(parameter)
            parameter.grad = gradient.view_as(parameter)


def train(
    flat: FlatModel, centre: Tensor, features: Tensor, targets: Tensor, workload: Workload
) -> None:
    """One client's SGD from the weights there are, back onto the ball after every step."""
    for _ in range(workload.epochs):
        order = torch.randperm(workload.samples)
        batches = zip(
            features[order].split(workload.batch),
            targets[order].split(workload.batch),
            strict=True,
        )
        for x, y in batches:
            flat.gradient.zero_()
            nn.functional.cross_entropy(flat.model(x), y).backward()
            flat.weights.sub_(flat.gradient, alpha=workload.learning_rate)
            moved = flat.weights - centre
            length = float(moved.norm())
            if length > workload.clip_norm:
                torch.add(centre, moved, alpha=workload.clip_norm / length, out=flat.weights)


class Federation:
    """The server, and everybody's data."""

    def __init__(self, workload: Workload, features: np.ndarray, targets: np.ndarray) -> None:
        self.workload = workload
        self.features, self.targets = torch.from_numpy(features), torch.from_numpy(targets)
        self.flat = FlatModel(make_model(workload.model))
        self.params = self.flat.weights.clone()
        self.rng = np.random.default_rng(0)

    def run_round(self) -> None:
        """Sample, train, clip, sum; then noise, smooth, step."""
        workload = self.workload
        total = torch.zeros_like(self.params)
        for client in self.rng.choice(workload.clients, workload.cohort, replace=False):
            self.flat.weights.copy_(self.params)
            own = self.features[client], self.targets[client]
            train(self.flat, self.params, *own, workload)
            update = self.flat.weights - self.params
            total.add_(
                update, alpha=min(1.0, workload.clip_norm / max(float(update.norm()), 1e-12))
            )
        noise_stddev = workload.noise_multiplier * workload.clip_norm
        average = (total + noise_stddev * torch.randn_like(total)) / workload.cohort
        pieces = average.split(self.flat.sizes)
        self.params += torch.cat([_smooth(piece, workload.strength) for piece in pieces])


def _smooth(piece: Tensor, strength: float) -> Tensor:
    k = torch.arange(len(piece) // 2 + 1)
    eigenvalues = 1 + 4 * strength * torch.sin(math.pi * k / len(piece)).square()
    return torch.fft.irfft(torch.fft.rfft(piece) / eigenvalues, n=len(piece))


def main() -> None:
    """Time the rounds of a workload."""
    settings = parser()
    settings.add_argument("--threads", type=int, default=1)
    given = settings.parse_args()
    torch.set_num_threads(given.threads)
    workload = WORKLOADS[given.workload]
    federation = Federation(workload, *draw(workload))
    rounds = Rounds(given.rounds or workload.rounds)
    for _ in range(rounds.total):
        federation.run_round()
        rounds.done()


if __name__ == "__main__":
    main()
