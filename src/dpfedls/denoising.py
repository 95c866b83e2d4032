"""Post-process a release. A denoiser is given public values only, so it cannot cost privacy.

James–Stein and soft thresholding are the estimators the paper compares with (Table 4, after Balle
and Wang 2018); both need the noise level, which a release carries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from dpfedls.component import Component, check_types
from dpfedls.errors import InputError, require_not_negative
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector

Order: TypeAlias = Literal["BCHW", "BCWH", "BHWC", "BWHC"]


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


class LaplacianSmoothing(Component, frozen=True, tag="laplacian"):
    """Solve (I + strength · L) y = x on a ring (Algorithm 1, Eq. (*)).

    ``scope`` is the ring: each tensor by itself, as in the experiments of the paper, or the whole
    model as one vector, as in its theory. ``order`` says how convolution kernels are laid along
    the ring (B output and C input channels, H height, W width); BCHW is torch's own order.

    Guarantees: keeps the sum of the coordinates of each ring; never increases the ℓ2 norm;
    strength 0 is the identity to the bit.
    """

    strength: float = 1.0
    scope: Literal["tensor", "model"] = "tensor"
    order: Order = "BCHW"

    def __post_init__(self) -> None:
        check_types(self, "denoiser.")
        _check_strength("denoiser.strength", self.strength)

    def __call__(self, release: Release) -> Vector:
        if self.strength == 0:
            return release.value
        if self.scope == "model":
            pieces = [_along(t, self.order) for t in release.layout.split(release.value).values()]
            ring = smooth(torch.cat([piece.reshape(-1) for piece in pieces]), self.strength)
            parts = ring.split([piece.numel() for piece in pieces])
            rings = (part.view_as(piece) for part, piece in zip(parts, pieces, strict=True))
            return torch.cat([_back(ring, self.order).reshape(-1) for ring in rings])
        return _each_tensor(
            release, lambda t: _back(smooth(_along(t, self.order), self.strength), self.order)
        )


class JamesStein(Component, frozen=True, tag="james-stein"):
    """Shrink each tensor by 1 − (d − 2) ν² ÷ ‖x‖², not truncated at zero, as the paper ran it."""

    def __call__(self, release: Release) -> Vector:
        variance = release.noise_stddev**2

        def shrink(tensor: Tensor) -> Tensor:
            power = tensor.double().square().sum()
            # Below three coordinates the estimator is the identity, and 0 ÷ 0 shrinks nothing.
            excess = max(tensor.numel() - 2, 0) * variance
            return tensor * (1 - excess / power if excess and power > 0 else 1.0)

        return _each_tensor(release, shrink)


class SoftThreshold(Component, frozen=True, tag="soft-threshold"):
    """Move every coordinate towards zero by ν √(2 ln d), d the size of its tensor."""

    def __call__(self, release: Release) -> Vector:
        def threshold(tensor: Tensor) -> Tensor:
            level = release.noise_stddev * math.sqrt(2 * math.log(tensor.numel()))
            return torch.sign(tensor) * (tensor.abs() - level).clamp(min=0)

        return _each_tensor(release, threshold)


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


AnyDenoiser: TypeAlias = Identity | LaplacianSmoothing | JamesStein | SoftThreshold | Momentum
"""Those that a recipe can name by ``kind``."""


@torch.no_grad()
def smooth(tensor: Tensor, strength: float) -> Tensor:
    """Smooth the flattened tensor on a ring: (I + strength · L)⁻¹, same shape and dtype back.

    Gradients do not flow through it.
    """
    if not tensor.is_floating_point():
        raise InputError(f"smoothing needs floats, got {tensor.dtype}; convert with x.float()")
    _check_strength("strength", strength)
    if strength == 0 or tensor.numel() < 2:  # a ring of one has no neighbours to be smooth with
        return tensor.clone()
    ring = tensor.reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
    spare = torch.empty_like(ring)
    for direction in (1, -1):
        for factor, shift in _doublings(strength, torch.finfo(ring.dtype).eps):
            ring, spare = _add_shifted(ring, factor, direction * shift, spare), ring
    return (
        ring.div_((1 + 2 * strength + math.sqrt(1 + 4 * strength)) / 2)
        .view(tensor.shape)
        .to(tensor.dtype)
    )


def _doublings(strength: float, least: float) -> Iterator[tuple[float, int]]:
    """Factors and shifts that solve one of two recursions round the ring.

    With S a step along it, 1 + 2s − s(S + S⁻¹) = c (1 − pS)(1 − pS⁻¹), where 0 < p < 1 and c is
    what ``smooth`` divides by; and 1/(1 − pS) = (1 + pS)(1 + p²S²)(1 + p⁴S⁴)…
    """
    root = math.sqrt(1 + 4 * strength)
    pole, gap = 2 * strength / (1 + 2 * strength + root), (1 + root) / (1 + 2 * strength + root)
    factor, shift = pole, 1
    while factor > least * gap:  # what is left out is below the rounding of what is in
        yield factor, shift
        factor, shift = factor * factor, 2 * shift


def _check_strength(name: str, strength: float) -> None:
    require_not_negative(name, strength, "0 switches smoothing off")
    if strength > _MOST:
        raise InputError(
            f"{name} must be at most {_MOST:g}, got {strength:g}; far below that every coordinate "
            "of a tensor is its mean already"
        )


_MOST = 1e12


def _add_shifted(ring: Tensor, factor: float, shift: int, out: Tensor) -> Tensor:
    """``ring + factor · (ring moved along by shift)`` into ``out``."""
    shift %= len(ring)
    torch.add(ring[shift:], ring[: len(ring) - shift], alpha=factor, out=out[shift:])
    torch.add(ring[:shift], ring[len(ring) - shift :], alpha=factor, out=out[:shift])
    return out


def _each_tensor(release: Release, denoise: Callable[[Tensor], Tensor]) -> Vector:
    """Denoise every tensor by itself; a single number has nothing to be compared with."""
    tensors = release.layout.split(release.value).values()
    return torch.cat([(denoise(t) if t.numel() > 1 else t).reshape(-1) for t in tensors])


def _along(tensor: Tensor, order: Order) -> Tensor:
    """The tensor with a convolution kernel's axes in the order they lie along the ring."""
    if tensor.dim() != 4 or order == "BCHW":
        return tensor
    return tensor.permute(*("BCHW".index(axis) for axis in order)).contiguous()


def _back(tensor: Tensor, order: Order) -> Tensor:
    """Undo ``_along``."""
    if tensor.dim() != 4 or order == "BCHW":
        return tensor
    return tensor.permute(*(order.index(axis) for axis in "BCHW"))
