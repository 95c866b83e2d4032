"""Post-process a release. A denoiser is given public values only, so it cannot cost privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from dpfedls.component import Component
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector

Memory: TypeAlias = dict[str, Tensor]
"""What a denoiser keeps from one round to the next: named, public, part of every checkpoint."""


@runtime_checkable
class Denoiser(Protocol):
    """Anything that makes an update direction of a release: ``denoiser(release)``."""

    def __call__(self, release: Release, /) -> Vector: ...


@runtime_checkable
class DenoiserWithMemory(Protocol):
    """A denoiser, or a server optimiser, that remembers.

    It may also have ``ahead(params, memory)``: the weights from which the next clients start.
    """

    def start(self, layout: Layout) -> Memory: ...

    def __call__(self, release: Release, memory: Memory, /) -> tuple[Vector, Memory]: ...


AnyCallable: TypeAlias = Denoiser | DenoiserWithMemory


class Identity(Component, frozen=True, tag="identity"):
    """The release as it is: DP-Fed, that is DP-FedAvg."""

    def __call__(self, release: Release) -> Vector:
        return release.value


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
            own = {n.removeprefix(f"{k}."): t for n, t in memory.items() if n.startswith(f"{k}.")}
            value, own = denoise(step, release, own)
            release = replace(release, value=value)
            after |= {f"{k}.{name}": tensor for name, tensor in own.items()}
        return release.value, after


def chain(*denoisers: AnyCallable) -> Chain:
    """Smoothing, then momentum: ``chain(LaplacianSmoothing(strength=1.0), Momentum())``."""
    return Chain(denoisers)


def first_memory(denoiser: AnyCallable, layout: Layout) -> Memory:
    """What the denoiser remembers before the first round."""
    return denoiser.start(layout) if isinstance(denoiser, DenoiserWithMemory) else {}


def denoise(denoiser: AnyCallable, release: Release, memory: Memory) -> tuple[Vector, Memory]:
    """The direction of a release and what is remembered of it, from any kind of denoiser."""
    made: Any
    if isinstance(denoiser, DenoiserWithMemory):
        made = denoiser(release, memory)
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], dict):
            raise InputError(
                f"denoiser {denoiser!r} has start(), so it must return (direction, memory), a "
                f"tensor and a dict of tensors; it returned {type(made).__name__}"
            )
        direction, memory = made
    else:
        direction = denoiser(release)
    if not isinstance(direction, Tensor) or direction.shape != release.value.shape:
        found = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction)
        raise InputError(
            f"the denoiser made {found} of a release of shape {tuple(release.value.shape)}; it "
            "must return a tensor of that shape, the direction of the step"
        )
    return direction, memory


def each_tensor(release: Release, denoise: Callable[[Tensor], Tensor]) -> Vector:
    """Denoise every tensor by itself; a single number has nothing to be compared with."""
    tensors = release.layout.split(release.value).values()
    return torch.cat([(denoise(t) if t.numel() > 1 else t).reshape(-1) for t in tensors])
