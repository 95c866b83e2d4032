from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedls import FixedSizeSampling
from dpfedls.gaussian import gaussian_release
from dpfedls.parameters import Layout
from dpfedls.randomness import SeededStreams, SystemStreams
from federations import plan

DIM = 20_000
LAYOUT = Layout(("w",), ((DIM,),))
STREAMS = {"seeded": SeededStreams(5), "system": SystemStreams()}


def fits(noise: np.ndarray, stddev: float) -> bool:
    """Kolmogorov–Smirnov, false alarm 1e-6; 20,000 draws tell ×2/3 and ×3/2 apart for certain."""
    return stats.kstest(noise, stats.norm(scale=stddev).cdf).pvalue > 1e-6


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(
    ("sampler", "cohort"), [({}, 8.0), ({"sampler": FixedSizeSampling(cohort=5)}, 5.0)]
)
def test_the_noise_a_round_adds_is_the_noise_the_plan_says(kind, sampler, cohort):
    """Claim: what is really added, measured; wrong scales are told apart."""
    promised = plan(noise_multiplier=1.7, clip_norm=0.3, **sampler)
    total = torch.full((DIM,), 2.5, dtype=torch.float64)
    release = gaussian_release(total, promised, 0.3, 0, STREAMS[kind].noise(0), LAYOUT)
    noise = release.value.double().numpy() * cohort - 2.5
    assert fits(noise, 1.7 * 0.3)
    assert not fits(noise, 1.7 * 0.3 * 2 / 3)
    assert not fits(noise, 1.7 * 0.3 * 3 / 2)
    assert release.noise_stddev == pytest.approx(1.7 * 0.3 / cohort)


@pytest.mark.parametrize("kind", STREAMS)
def test_noise_is_fresh_in_every_round(kind):
    """All pairs of eight rounds; false alarm 28 times 1e-8 for the two-sided 5.73 / √20,000."""
    rounds = torch.stack([STREAMS[kind].noise(t)(DIM, torch.device("cpu")) for t in range(8)])
    pairs = torch.corrcoef(rounds) - torch.eye(8)
    assert float(pairs.abs().max()) < 5.73 / DIM**0.5


def test_system_noise_ignores_every_seed():
    def draw() -> torch.Tensor:
        torch.manual_seed(0)
        np.random.seed(0)
        return SystemStreams().noise(0)(100, torch.device("cpu"))

    assert not torch.equal(draw(), draw())


def test_without_noise_the_release_is_the_plain_average():
    total = torch.arange(DIM, dtype=torch.float64)
    release = gaussian_release(
        total, plan(noise_multiplier=0), 0.3, 0, STREAMS["seeded"].noise(0), LAYOUT
    )
    assert torch.equal(release.value, (total / 8).float())
    assert release.noise_stddev == 0
