"""The estimators that the paper compares with (Table 4, after Balle and Wang 2018).

Both need the noise level, which a release carries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpfedls.component import Component
from dpfedls.denoising import each_tensor
from dpfedls.gaussian import Release
from dpfedls.parameters import Vector


class JamesStein(Component, frozen=True, tag="james-stein"):
    """Shrink each tensor by 1 − (d − 2) ν² ÷ ‖x‖², not truncated at zero, as the paper ran it."""

    def __call__(self, release: Release) -> Vector:
        variance = release.noise_stddev**2

        def shrink(tensor: Tensor) -> Tensor:
            power = tensor.double().square().sum()
            # Below three coordinates the estimator is the identity, and 0 ÷ 0 shrinks nothing.
            excess = max(tensor.numel() - 2, 0) * variance
            return tensor * (1 - excess / power if excess and power > 0 else 1.0)

        return each_tensor(release, shrink)


class SoftThreshold(Component, frozen=True, tag="soft-threshold"):
    """Move every coordinate towards zero by ν √(2 ln d), d the size of its tensor."""

    def __call__(self, release: Release) -> Vector:
        def threshold(tensor: Tensor) -> Tensor:
            level = release.noise_stddev * math.sqrt(2 * math.log(tensor.numel()))
            return torch.sign(tensor) * (tensor.abs() - level).clamp(min=0)

        return each_tensor(release, threshold)
