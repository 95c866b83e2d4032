"""Max pooling by tiles; memory is (client · sample, y, x, channel).

Each element of a program computes one value of the output.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfedls.engine.kernels.layout import channels_last

_ELEMENTS = 1024  # per program


@triton.jit
def _largest(
    images, out, places, n, width, out_width, CHANNELS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    pixel, channel = at // CHANNELS, at % CHANNELS
    row, x = pixel // out_width, pixel % out_width  # rows are counted over all images
    first = images + (row * SIZE * width + x * SIZE) * CHANNELS + channel
    best = tl.load(first, mask, other=0.0)
    place = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, SIZE * SIZE):
        value = tl.load(first + ((k // SIZE) * width + k % SIZE) * CHANNELS, mask, other=0.0)
        # NaN is the largest, as in torch: an update that it spoils must not look sound.
        larger = (value > best) | (value != value)
        place = tl.where(larger, k, place)
        best = tl.where(larger, value, best)
    tl.store(out + at, best, mask)
    tl.store(places + at, place.to(tl.uint8), mask)


def largest(images: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """For each tile of (n, b, c, h, w), its largest value and the position of that in the tile."""
    rows = images.permute(0, 1, 3, 4, 2).contiguous()
    clients, batch, height, width, channels = rows.shape
    out = channels_last(rows, clients, batch, channels, height // size, width // size)
    places = torch.empty(out.numel(), dtype=torch.uint8, device=out.device)
    _largest[(triton.cdiv(out.numel(), _ELEMENTS),)](
        rows, out, places, out.numel(), width, width // size,
        CHANNELS=channels, SIZE=size, BLOCK=_ELEMENTS,
    )  # fmt: skip
    return out, places


@triton.jit
def _largest_backward(
    d_out, places, d_images, n, width, out_width, CHANNELS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    pixel, channel = at // CHANNELS, at % CHANNELS
    row, x = pixel // out_width, pixel % out_width
    first = d_images + (row * SIZE * width + x * SIZE) * CHANNELS + channel
    gradient, place = tl.load(d_out + at, mask, other=0.0), tl.load(places + at, mask, other=0)
    for k in tl.static_range(SIZE * SIZE):
        value = tl.where(place == k, gradient, 0.0).to(d_images.dtype.element_ty)
        tl.store(first + ((k // SIZE) * width + k % SIZE) * CHANNELS, value, mask)


def largest_backward(d_out: Tensor, places: Tensor, size: int) -> Tensor:
    """The gradient of the largest value of each tile; zero at every other position."""
    rows = d_out.permute(0, 1, 3, 4, 2).contiguous()
    clients, batch, height, width, channels = rows.shape
    d_images = channels_last(rows, clients, batch, channels, height * size, width * size)
    _largest_backward[(triton.cdiv(rows.numel(), _ELEMENTS),)](
        rows, places, d_images, rows.numel(), width * size, width,
        CHANNELS=channels, SIZE=size, BLOCK=_ELEMENTS,
    )  # fmt: skip
    return d_images
