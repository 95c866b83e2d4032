"""Convolutions as implicit matrix products: patches are loaded as they are needed, never stored.

Images are (client, sample, y, x, channel), contiguous in the channels and with any other strides;
kernels are (client, tap, channel, output).
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfedls.engine.kernels.layout import channels_last


@triton.jit
def _convolve(
    images, kernels, bias, out,
    rows, height, width, out_height, out_width, at_client, at_sample, at_row, at_pixel,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE_Y: tl.constexpr, SIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, BIAS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    channel = tl.arange(0, K)
    sample, place = row // (out_height * out_width), row % (out_height * out_width)
    y, x = place // out_width - PAD_Y, place % out_width - PAD_X
    images += client * at_client
    kernels += client * SIDE_Y * SIDE_X * CHANNELS * OUTPUTS
    real = row < rows
    total = tl.zeros((M, N), dtype=tl.float32)
    for tap in range(SIDE_Y * SIDE_X):
        at_y, at_x = y + tap // SIDE_X, x + tap % SIDE_X
        inside = real & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
        pixel = sample * at_sample + at_y * at_row + at_x * at_pixel
        for first in range(0, CHANNELS, K):
            there = first + channel < CHANNELS
            patch = tl.load(
                images + pixel[:, None] + (first + channel)[None, :],
                inside[:, None] & there[None, :],
                other=0.0,
            )
            weights = tl.load(
                kernels + ((tap * CHANNELS + first + channel) * OUTPUTS)[:, None] + column[None, :],
                there[:, None] & (column < OUTPUTS)[None, :],
                other=0.0,
            )
            total = tl.dot(patch, weights, total)
    if BIAS:
        shift = tl.load(bias + client * OUTPUTS + column, column < OUTPUTS, other=0.0)
        total += shift.to(tl.float32)[None, :]
    target = out + (client * rows + row)[:, None] * OUTPUTS + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), real[:, None] & (column < OUTPUTS)[None, :])


def convolve(
    images: Tensor, kernels: Tensor, bias: Tensor | None, padding: tuple[int, int]
) -> Tensor:
    """(n, b, h, w, c) and (n, ky, kx, c, o) to (n, b, o, h', w'), channels last in memory."""
    clients, samples, height, width, channels = images.shape
    _, side_y, side_x, _, outputs = kernels.shape
    out_height = height + 2 * padding[0] - side_y + 1
    out_width = width + 2 * padding[1] - side_x + 1
    out = channels_last(images, clients, samples, outputs, out_height, out_width)
    rows = samples * out_height * out_width
    n = min(128, max(16, triton.next_power_of_2(outputs)))
    # These tile shapes were the fastest of a few tried on an H200.
    k = min(128 if n <= 64 else 64, max(16, triton.next_power_of_2(channels)))
    _convolve[(triton.cdiv(rows, 128), triton.cdiv(outputs, n), clients)](
        images, kernels, images if bias is None else bias, out,
        rows, height, width, out_height, out_width, *images.stride()[:4],
        CHANNELS=channels, OUTPUTS=outputs, SIDE_Y=side_y, SIDE_X=side_x,
        PAD_Y=padding[0], PAD_X=padding[1], BIAS=bias is not None,
        M=128, N=n, K=k, num_warps=8 if n == 128 else 4, num_stages=2 if k == 128 else 3,
    )  # fmt: skip
    return out


@triton.jit
def _correlate(
    images, gradients, out,
    rows, height, width, out_height, out_width, at_client, at_sample, at_row, at_pixel,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE_Y: tl.constexpr, SIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    block, share = tl.program_id(0) // SHARES, tl.program_id(0) % SHARES
    place = block * M + tl.arange(0, M)  # in the kernel, which is (tap, channel)
    if CHANNELS % M == 0:  # the whole block belongs to one tap
        tap, channel = block * M // CHANNELS, place % CHANNELS
    else:
        tap, channel = (place // CHANNELS)[None, :], place % CHANNELS
    column = tl.program_id(1) * N + tl.arange(0, N)
    area = out_height * out_width
    images += client * at_client
    gradients += client * rows * OUTPUTS
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(share * K, rows, SHARES * K):
        row = (first + tl.arange(0, K))[:, None]
        sample, pixel = row // area, row % area
        at_y = pixel // out_width - PAD_Y + tap // SIDE_X
        at_x = pixel % out_width - PAD_X + tap % SIDE_X
        inside = (row < rows) & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
        patch = tl.load(
            images + (sample * at_sample + at_y * at_row + at_x * at_pixel) + channel[None, :],
            inside & (place < SIDE_Y * SIDE_X * CHANNELS)[None, :],
            other=0.0,
        )
        gradient = tl.load(
            gradients + row * OUTPUTS + column[None, :],
            (row < rows) & (column < OUTPUTS)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(patch), gradient, total)
    size = SIDE_Y * SIDE_X * CHANNELS
    target = out + ((client * SHARES + share) * size + place)[:, None] * OUTPUTS + column[None, :]
    mask = (place < size)[:, None] & (column < OUTPUTS)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask)


def correlate(
    images: Tensor, gradients: Tensor, side: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The gradient (n, ky, kx, c, o) of the kernels of ``convolve``."""
    clients, samples, height, width, channels = images.shape
    _, _, out_height, out_width, outputs = gradients.shape
    few = channels % 64 != 0
    size = side[0] * side[1] * channels
    m, n = 128 if few else 64, min(128, max(16, triton.next_power_of_2(outputs)))
    # Few programs would leave most of the GPU idle, so several share the rows of one.
    shares = 8 if few else 1
    out = images.new_empty(clients, shares, size, outputs, dtype=torch.float32 if few else None)
    _correlate[(triton.cdiv(size, m) * shares, triton.cdiv(outputs, n), clients)](
        images, gradients, out,
        samples * out_height * out_width, height, width, out_height, out_width,
        *images.stride()[:4],
        CHANNELS=channels, OUTPUTS=outputs, SIDE_Y=side[0], SIDE_X=side[1],
        PAD_Y=padding[0], PAD_X=padding[1], M=m, N=n, K=64, SHARES=shares,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    summed = out.sum(dim=1).to(images.dtype) if few else out
    return summed.view(clients, *side, channels, outputs)
