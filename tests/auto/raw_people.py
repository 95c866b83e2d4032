"""People whose inputs have units of their own, and a network and a plan for them."""

from __future__ import annotations

import torch
from torch import nn

from dpfedls import PoissonSampling, PrivacyPlan
from dpfedls.people.survey import Measured
from dpfedls.privacy.clipping import AdaptiveClipping

SCALES = torch.tensor([0.01, 1.0, 30.0, 2000.0, 1.0, 5.0])
MEANS = torch.tensor([0.0, 3.0, -50.0, 9000.0, 0.0, 1.0])
ASKS = Measured(first=1, sizes=2, later=2)


def people(count=300, each=8, scales=SCALES, means=MEANS, seed=1):
    """Three classes by six columns; in which units, the arguments say."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, each, 6, generator=rng)
    way = torch.randn(6, 3, generator=torch.Generator().manual_seed(99))
    return list(zip(x * scales + means, (2 * x @ way).argmax(dim=2), strict=True))


def usual(count=60, each=8):
    """The same in units that suit every rule."""
    return people(count, each, scales=torch.ones(6), means=torch.zeros(6))


def network(inputs=6):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh(), nn.Linear(12, 3))


def plan(count=300, rounds=14, noise=0.5, clip_norm=None):
    return PrivacyPlan(
        sampler=PoissonSampling(rate=0.5),
        num_clients=count,
        rounds=rounds,
        clip_norm=clip_norm or AdaptiveClipping(),
        noise_multiplier=noise,
        delta=1e-3,
    )
