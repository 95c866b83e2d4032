"""The privacy boundary: a clipped sum goes in, a noisy average that anyone may see comes out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpfedls.parameters import Layout, Vector
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import Noise


@dataclass(frozen=True)
class Release:
    """What a round makes public: safe to log, to store and to use again."""

    value: Vector  # the noisy average update
    noise_stddev: float  # of every coordinate of value
    layout: Layout


def gaussian_release(total: Vector, plan: PrivacyPlan, noise: Noise, layout: Layout) -> Release:
    """Add Gaussian noise to the sum of clipped updates; divide by the public expected cohort.

    Guarantees: noise level and denominator depend on the plan alone, never on who took part.
    The sum and the noise meet in float64 and are rounded only afterwards.
    """
    noisy = total
    if plan.is_private:
        noisy = noise(layout.dim, total.device).mul_(plan.noise_stddev).add_(total)
    average = (noisy / plan.expected_cohort).to(torch.float32)
    return Release(average, plan.noise_stddev / plan.expected_cohort, layout)
