"""The privacy boundary: a clipped sum goes in, a noisy average that anyone may see comes out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpfedls.parameters import Layout, Total, Vector
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import Noise


@dataclass(frozen=True)
class Release:
    """What a round makes public: safe to log, to store and to use again."""

    value: Vector  # the noisy average update
    noise_stddev: float  # of every coordinate of value
    layout: Layout
    round: int = 0
    clip_norm: float = 0.0  # of this round
    inside: float | None = None  # the noisy share of updates inside the ball, where it is counted
    step: float = 1.0  # what the server multiplies the direction by


def gaussian_release(
    total: Total, plan: PrivacyPlan, clip_norm: float, round_: int, noise: Noise, layout: Layout
) -> Release:
    """Add Gaussian noise to the sum of contributions; divide by the public expected cohort.

    Guarantees: noise level and denominator depend on the plan and the public clip norm alone, never
    on who took part. The sum and the noise meet in float64; all that leaves is rounded to float32
    afterwards, which takes away the low bits that could tell one sum from another.
    """
    stddev, cohort = plan.noise_stddev(clip_norm), plan.expected_cohort
    noisy = total
    if plan.is_private:
        noisy = noise(len(total), total.device).mul_(stddev).add_(total)
    weight, quantile = plan.clipping.indicator(clip_norm), plan.clipping.quantile
    average = (noisy[: len(noisy) - (weight > 0)] / cohort).to(torch.float32)
    inside = quantile + float((noisy[-1] / (weight * cohort)).float()) if weight else None
    return Release(average, stddev / cohort, layout, round_, clip_norm, inside)
