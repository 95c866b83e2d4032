"""The denoisers that recipes can name by ``kind``; ``denoising`` says what a denoiser is."""

from __future__ import annotations

from typing import TypeAlias

from dpfedls.denoisers.estimators import JamesStein, SoftThreshold
from dpfedls.denoisers.laplacian import LaplacianSmoothing, smooth
from dpfedls.denoisers.momentum import Momentum
from dpfedls.denoising import Identity

AnyDenoiser: TypeAlias = Identity | LaplacianSmoothing | JamesStein | SoftThreshold | Momentum

__all__ = [
    "AnyDenoiser",
    "Identity",
    "JamesStein",
    "LaplacianSmoothing",
    "Momentum",
    "SoftThreshold",
    "smooth",
]
