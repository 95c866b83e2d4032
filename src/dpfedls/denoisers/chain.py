"""Denoisers one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpfedls.denoising import AnyCallable, Memory, denoise, first_memory, look_ahead
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector


@dataclass(frozen=True)
class Chain:
    """Denoisers one after another; ``noise_stddev`` stays that of the release itself."""

    steps: tuple[AnyCallable, ...]

    def start(self, layout: Layout) -> Memory:
        return {
            f"{k}.{name}": tensor
            for k, step in enumerate(self.steps)
            for name, tensor in first_memory(step, layout).items()
        }

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        after: Memory = {}
        for k, step in enumerate(self.steps):
            value, own = denoise(step, release, _own(memory, k))
            release = replace(release, value=value)
            after |= {f"{k}.{name}": tensor for name, tensor in own.items()}
        return release.value, after

    def ahead(self, params: Vector, memory: Memory) -> Vector:
        for k, step in enumerate(self.steps):
            params = look_ahead(step, params, _own(memory, k))
        return params


def _own(memory: Memory, k: int) -> Memory:
    return {n.removeprefix(f"{k}."): t for n, t in memory.items() if n.startswith(f"{k}.")}


def chain(*denoisers: AnyCallable) -> Chain:
    """Smoothing, then momentum: ``chain(LaplacianSmoothing(strength=1.0), Momentum())``."""
    return Chain(denoisers)
