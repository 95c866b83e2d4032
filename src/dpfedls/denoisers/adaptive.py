"""Laplacian smoothing that finds its own strength, along the axes of every tensor.

Let neighbours along an axis have correlation ρ, as in an autoregressive process of order one. Its
precision matrix is a multiple of I + sL with s = ρ ÷ (1 − ρ)², L the Laplacian of a path with free
ends; so the Wiener filter of such a signal in white noise is (I + s′L)⁻¹ times a number, where
s′ is s in much noise and less in little. Instead of that number the result is scaled by the fourth
root of the noise power that smoothing saves: half of the gain is spent on a longer step. ρ is read
off everything released so far: noise is independent from coordinate to coordinate and adds nothing,
on average, to products of neighbours; how much of it there is is public.

The filter acts on the sum of all releases, not on each by itself: once ρ is known, the noise of
the first rounds is smoothed too. With a strength that does not change the two are the same.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from dpfedls.component import Component
from dpfedls.denoising import Memory
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector


class AdaptiveSmoothing(Component, frozen=True, tag="adaptive-laplacian"):
    """Smooth each axis of a tensor as strongly as neighbours along it are alike.

    The result is scaled by the fourth root of the noise power saved, so it can be longer than the
    release.

    Guarantees: reads releases only, so it costs no privacy; where neighbours are not alike the
    release stays as it is.
    """

    def start(self, layout: Layout) -> Memory:
        return {
            "total": torch.zeros(layout.dim),
            "smoothed": torch.zeros(layout.dim),
            "noise": torch.zeros(1),  # its variance in each weight of the total
        }

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        if "noise" not in memory:
            raise InputError(
                "this run began with an earlier adaptive smoothing, which did not keep how much "
                "noise was released, and cannot go on with this one; begin anew in another folder"
            )
        total = memory["total"] + release.step * release.value
        noise = memory["noise"] + (release.step * release.noise_stddev) ** 2
        tensors = release.layout.split(total).values()
        smoothed = torch.cat([smooth_axes(t, float(noise)).reshape(-1) for t in tensors])
        direction = (smoothed - memory["smoothed"]) / release.step
        return direction, {"total": total, "smoothed": smoothed, "noise": noise}


def smooth_axes(tensor: Tensor, noise: float = math.inf) -> Tensor:
    """The tensor, smoothed along each axis by the strength that its neighbours ask for.

    Not along the first: it counts units, classes or words, whose order means nothing, and classes
    that happen to be alike, as letters are in an alphabet, must stay apart.
    """
    strengths = {axis: strength_along(tensor, axis, noise) for axis in range(1, tensor.dim())}
    for axis, strength in strengths.items():
        if strength > 0:
            tensor = smooth_path(tensor, strength, axis) * _gain_for_saved_noise(strength)
    return tensor


def strength_along(tensor: Tensor, axis: int, noise: float = math.inf) -> float:
    """ρ ÷ (1 − ρ)², where ρ is by how much products of neighbours fall with each place further.

    The ratio does without the variance, to which noise adds. What all entries of a row have in
    common is taken out: it makes the far ones as much alike as the near ones. Zero unless the
    products are beyond what noise alone gives in one of four thousand cases. Less where the noise,
    whose variance is known, is not much: where it is n times 8 times the signal's power at
    frequency zero, n ÷ (1 + n) of that.
    """
    if tensor.shape[axis] < _LEAST_ENTRIES:
        return 0.0
    rows = tensor.movedim(axis, -1)
    rows = rows - rows.mean(dim=-1, keepdim=True)
    size = rows.shape[-1]
    near = [float((rows[..., k:] * rows[..., : size - k]).sum()) for k in range(1, _NEAR + 1)]
    chance = float(rows.square().mean()) * math.sqrt(_NEAR * rows.numel())
    if not (near[0] > 0 and sum(near) > _BEYOND_CHANCE * chance):
        return 0.0
    # What is alike again further away is a pattern, such as the rows of a small image laid one
    # after another: likeness counts as far as it only falls (as in Geyer 1992).
    near = list(itertools.accumulate(near, lambda last, new: max(0.0, min(last, new))))
    alike = min(sum(near[1:]) / sum(near[:-1]), _MOST_ALIKE)
    if alike == 0 or noise == 0:
        return 0.0
    pairs = rows.numel() // size * (size - 1)
    slow = near[0] / pairs / alike * (1 + alike) / (1 - alike)  # the signal's power at frequency 0
    return alike / (1 - alike) ** 2 / (1 + _BIAS * slow / noise)


def smooth_path(tensor: Tensor, strength: float, axis: int) -> Tensor:
    """(I + strength · L)⁻¹ along an axis, L the Laplacian of a path with free ends.

    A path with free ends is half of the ring on which it lies forwards, then backwards.
    """
    size = tensor.shape[axis]
    spectrum = torch.fft.rfft(torch.cat([tensor, tensor.flip(axis)], dim=axis), dim=axis)
    waves = torch.arange(size + 1, device=tensor.device) * (math.pi / (2 * size))
    gain = 1 / (1 + 4 * strength * waves.sin().square())
    gain = gain.view(-1, *(1,) * (tensor.dim() - 1 - axis))
    return torch.fft.irfft(spectrum * gain, 2 * size, dim=axis).narrow(axis, 0, size)


def _gain_for_saved_noise(strength: float) -> float:
    """Half of the noise that smoothing saves, in logarithms, is spent on a longer step."""
    power = (1 + 2 * strength) / (1 + 4 * strength) ** 1.5  # of smoothed white noise of power 1
    return power**-0.25


_LEAST_ENTRIES = 8  # in fewer there is nothing to be learned about neighbours
_NEAR = 4  # neighbours on each side that are compared
_BEYOND_CHANCE = 3.5
_MOST_ALIKE = 0.7  # a stronger filter costs more than noise
_BIAS = 8.0  # how much more the signal that is lost counts: noise averages out, and it does not
