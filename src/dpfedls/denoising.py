"""Post-process a release. A denoiser is given public values only, so it cannot cost privacy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from dpfedls.component import Component
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector

Memory: TypeAlias = dict[str, Tensor]
"""What a denoiser keeps from one round to the next: named, public, part of every checkpoint."""


@runtime_checkable
class DenoiserWithMemory(Protocol):
    """A denoiser, or a server optimiser, that remembers.

    It may also have ``ahead(params, memory)``: the weights from which the next clients start.
    """

    def start(self, layout: Layout) -> Memory: ...

    def __call__(self, release: Release, memory: Memory, /) -> tuple[Vector, Memory]: ...


AnyCallable: TypeAlias = Callable[[Release], Vector] | DenoiserWithMemory
"""Anything that makes an update direction of a release: ``denoiser(release)``."""


class Identity(Component, frozen=True, tag="identity"):
    """The release as it is: DP-Fed, that is DP-FedAvg."""

    def __call__(self, release: Release) -> Vector:
        return release.value


def first_memory(denoiser: AnyCallable, layout: Layout) -> Memory:
    """What the denoiser remembers before the first round."""
    return _kept(denoiser.start(layout)) if isinstance(denoiser, DenoiserWithMemory) else {}


def look_ahead(denoiser: AnyCallable, params: Vector, memory: Memory) -> Vector:
    """The weights from which the next clients start: these, unless the denoiser has others."""
    ahead = getattr(denoiser, "ahead", None)
    return params if ahead is None else ahead(params, memory)


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
        direction, memory = made[0], _kept(made[1])
    else:
        direction = denoiser(release)
    direction = torch.from_numpy(direction) if isinstance(direction, np.ndarray) else direction
    if not isinstance(direction, Tensor) or direction.shape != release.value.shape:
        found = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction)
        raise InputError(
            f"the denoiser made {found} of a release of shape {tuple(release.value.shape)}; it "
            "must return a tensor of that shape, the direction of the step"
        )
    return direction.to(release.value), memory  # its precision and device


def _kept(memory: dict[str, Any]) -> Memory:
    """What a denoiser wants to remember as tensors that a checkpoint can keep."""
    try:
        tensors = {name: torch.as_tensor(value) for name, value in memory.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a denoiser's memory is a dict of tensors, got {memory!r}") from error
    # NumPy, in which checkpoints are written, has no bfloat16.
    return {n: t.float() if t.dtype == torch.bfloat16 else t for n, t in tensors.items()}


def each_tensor(release: Release, denoise: Callable[[Tensor], Tensor]) -> Vector:
    """Denoise every tensor by itself; a single number has nothing to be compared with."""
    tensors = release.layout.split(release.value).values()
    return torch.cat([(denoise(t) if t.numel() > 1 else t).reshape(-1) for t in tensors])
