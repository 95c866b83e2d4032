"""The denoisers that recipes can name by ``kind``; ``denoising`` says what a denoiser is."""

from __future__ import annotations

from typing import TypeAlias

from dpfedls.denoisers.adaptive import AdaptiveSmoothing
from dpfedls.denoisers.estimators import JamesStein, SoftThreshold
from dpfedls.denoisers.laplacian import LaplacianSmoothing, smooth
from dpfedls.denoisers.momentum import Momentum
from dpfedls.denoising import Identity

AnyDenoiser: TypeAlias = (
    Identity | LaplacianSmoothing | AdaptiveSmoothing | JamesStein | SoftThreshold | Momentum
)

__all__ = [
    "AdaptiveSmoothing",
    "AnyDenoiser",
    "Identity",
    "JamesStein",
    "LaplacianSmoothing",
    "Momentum",
    "SoftThreshold",
    "smooth",
]
