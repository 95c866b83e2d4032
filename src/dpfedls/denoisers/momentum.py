"""Averages over rounds, as denoisers with memory."""

from __future__ import annotations

import torch

from dpfedls.component import Component, check_types
from dpfedls.denoising import Memory
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector


class Momentum(Component, frozen=True, tag="momentum"):
    """An exponential average of the releases: v ← decay · v + (1 − decay) · x.

    As an average it leaves the length of steps as it is, so a server rate keeps its meaning.
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        check_types(self, "denoiser.")
        if not 0 <= self.decay < 1:
            raise InputError(
                f"denoiser.decay must be in [0, 1), got {self.decay:g}; 0 switches momentum off"
            )

    def start(self, layout: Layout) -> Memory:
        return {"momentum": torch.zeros(layout.dim)}

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        average = release.value.lerp(memory["momentum"], self.decay)
        return average, {"momentum": average}
