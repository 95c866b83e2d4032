"""Laplacian smoothing on a ring: A_σ⁻¹ = (I + σL)⁻¹ of the paper, in a few passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from dpfedls.component import Component, check_types
from dpfedls.denoising import each_tensor
from dpfedls.errors import InputError, require_not_negative
from dpfedls.gaussian import Release
from dpfedls.parameters import Vector

Order: TypeAlias = Literal["BCHW", "BCWH", "BHWC", "BWHC"]


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
        if isinstance(self.strength, str):
            raise InputError(
                f"denoiser.strength = {self.strength!r} is no number; smoothing that finds its own "
                'strength is dpfedls.AdaptiveSmoothing(), in a recipe kind = "adaptive-laplacian"'
            )
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
        return each_tensor(
            release, lambda t: _back(smooth(_along(t, self.order), self.strength), self.order)
        )


@torch.no_grad()
def smooth(tensor: Tensor, strength: float) -> Tensor:
    """Smooth the flattened tensor on a ring: (I + strength · L)⁻¹, same shape and dtype back.

    Gradients do not flow through it.
    """
    if not isinstance(tensor, Tensor):
        raise InputError(f"smoothing needs a tensor, got {tensor!r:.60}; give torch.as_tensor(x)")
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
