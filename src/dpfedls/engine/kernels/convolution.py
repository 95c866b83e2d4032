"""Convolutions as implicit matrix products: patches are loaded as they are needed, never stored.

Images are (client, sample, y, x, channel), contiguous in the channels and with any other strides;
kernels are (client, tap, channel, output). Both come in bfloat16, float32 as two halves: three of
their four products are computed, which errs by 1e-5, where TF32 errs by 3e-4.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpfedls.engine.kernels.halves import Parts
from dpfedls.engine.kernels.layout import channels_last


@triton.jit
def _convolve(
    images, images_low, kernels, kernels_low, bias, out,
    rows, height, width, out_height, out_width, at_client, at_sample, at_row, at_pixel,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE_Y: tl.constexpr, SIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, BIAS: tl.constexpr,
    SPLIT: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    channel = tl.arange(0, K)
    sample, place = row // (out_height * out_width), row % (out_height * out_width)
    y, x = place // out_width - PAD_Y, place % out_width - PAD_X
    images += client * at_client
    images_low += client * at_client
    kernels += client * SIDE_Y * SIDE_X * CHANNELS * OUTPUTS
    kernels_low += client * SIDE_Y * SIDE_X * CHANNELS * OUTPUTS
    real = row < rows
    total = tl.zeros((M, N), dtype=tl.float32)
    for tap in range(SIDE_Y * SIDE_X):
        at_y, at_x = y + tap // SIDE_X, x + tap % SIDE_X
        inside = real & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
        pixel = sample * at_sample + at_y * at_row + at_x * at_pixel
        for first in range(0, CHANNELS, K):
            there = first + channel < CHANNELS
            at_patch = pixel[:, None] + (first + channel)[None, :]
            at_weight = ((tap * CHANNELS + first + channel) * OUTPUTS)[:, None] + column[None, :]
            in_patch = inside[:, None] & there[None, :]
            in_weight = there[:, None] & (column < OUTPUTS)[None, :]
            patch = tl.load(images + at_patch, in_patch, other=0.0)
            weights = tl.load(kernels + at_weight, in_weight, other=0.0)
            if SPLIT:  # without low · low, 2^-16 of the product
                total = tl.dot(tl.load(images_low + at_patch, in_patch, other=0.0), weights, total)
                low = tl.load(kernels_low + at_weight, in_weight, other=0.0)
                total = tl.dot(patch, low, total)
            total = tl.dot(patch, weights, total)
    if BIAS:
        shift = tl.load(bias + client * OUTPUTS + column, column < OUTPUTS, other=0.0)
        total += shift.to(tl.float32)[None, :]
    target = out + (client * rows + row)[:, None] * OUTPUTS + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), real[:, None] & (column < OUTPUTS)[None, :])


def convolve(
    images: Parts, kernels: Parts, bias: Tensor | None, padding: tuple[int, int]
) -> Tensor:
    """(n, b, h, w, c) and (n, ky, kx, c, o) to (n, b, o, h', w'), channels last in memory."""
    clients, samples, height, width, channels = images[0].shape
    _, side_y, side_x, _, outputs = kernels[0].shape
    split = len(images) == 2
    out_height = height + 2 * padding[0] - side_y + 1
    out_width = width + 2 * padding[1] - side_x + 1
    dtype = torch.float32 if split else images[0].dtype
    out = channels_last(images[0], clients, samples, outputs, out_height, out_width, dtype)
    rows = samples * out_height * out_width
    n = min(128, max(16, triton.next_power_of_2(outputs)))
    # These tile shapes were the fastest of a few tried on an H200 that smaller cards hold as well.
    k = 32 if split else 128 if n <= 64 else 64
    k = min(k, max(16, triton.next_power_of_2(channels)))
    _convolve[(triton.cdiv(rows, 128), triton.cdiv(outputs, n), clients)](
        images[0], images[-1], kernels[0], kernels[-1], out if bias is None else bias, out,
        rows, height, width, out_height, out_width, *images[0].stride()[:4],
        CHANNELS=channels, OUTPUTS=outputs, SIDE_Y=side_y, SIDE_X=side_x,
        PAD_Y=padding[0], PAD_X=padding[1], BIAS=bias is not None, SPLIT=split,
        M=128, N=n, K=k, num_warps=8 if split and n == 128 else 4,
        num_stages=2 if k == 128 or (split and n == 128) else 3,
    )  # fmt: skip
    return out


@triton.jit
def _correlate(
    images, images_low, gradients, gradients_low, out,
    rows, height, width, out_height, out_width, at_client, at_sample, at_row, at_pixel,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, SIDE_Y: tl.constexpr, SIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, SPLIT: tl.constexpr,
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
    images_low += client * at_client
    gradients += client * rows * OUTPUTS
    gradients_low += client * rows * OUTPUTS
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(share * K, rows, SHARES * K):
        row = (first + tl.arange(0, K))[:, None]
        sample, pixel = row // area, row % area
        at_y = pixel // out_width - PAD_Y + tap // SIDE_X
        at_x = pixel % out_width - PAD_X + tap % SIDE_X
        inside = (row < rows) & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
        at_patch = (sample * at_sample + at_y * at_row + at_x * at_pixel) + channel[None, :]
        at_gradient = row * OUTPUTS + column[None, :]
        in_patch = inside & (place < SIDE_Y * SIDE_X * CHANNELS)[None, :]
        in_gradient = (row < rows) & (column < OUTPUTS)[None, :]
        patch = tl.trans(tl.load(images + at_patch, in_patch, other=0.0))
        gradient = tl.load(gradients + at_gradient, in_gradient, other=0.0)
        if SPLIT:
            low = tl.trans(tl.load(images_low + at_patch, in_patch, other=0.0))
            total = tl.dot(low, gradient, total)
            low_gradient = tl.load(gradients_low + at_gradient, in_gradient, other=0.0)
            total = tl.dot(patch, low_gradient, total)
        total = tl.dot(patch, gradient, total)
    size = SIDE_Y * SIDE_X * CHANNELS
    target = out + ((client * SHARES + share) * size + place)[:, None] * OUTPUTS + column[None, :]
    mask = (place < size)[:, None] & (column < OUTPUTS)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask)


def correlate(
    images: Parts, gradients: Parts, side: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The gradient (n, ky, kx, c, o) of the kernels of ``convolve``."""
    clients, samples, height, width, channels = images[0].shape
    _, _, out_height, out_width, outputs = gradients[0].shape
    split, few = len(images) == 2, channels % 64 != 0
    dtype = torch.float32 if split else images[0].dtype
    size = side[0] * side[1] * channels
    n = min(128, max(16, triton.next_power_of_2(outputs)))
    # As above; two taps of 64 channels share a tile, but not of halves, which are twice the loads.
    m, k, stages = (128, 64, 3) if few else (128, 32, 4)
    if split:
        m, k, stages = 128 if few else 64, 32, 3
    # Few programs would leave most of the GPU idle, so several share the rows of one.
    shares = 8 if few else 1
    kept = torch.float32 if few else dtype
    out = images[0].new_empty(clients, shares, size, outputs, dtype=kept)
    _correlate[(triton.cdiv(size, m) * shares, triton.cdiv(outputs, n), clients)](
        images[0], images[-1], gradients[0], gradients[-1], out,
        samples * out_height * out_width, height, width, out_height, out_width,
        *images[0].stride()[:4],
        CHANNELS=channels, OUTPUTS=outputs, SIDE_Y=side[0], SIDE_X=side[1],
        PAD_Y=padding[0], PAD_X=padding[1], SPLIT=split, M=m, N=n, K=k, SHARES=shares,
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    summed = out.sum(dim=1).to(dtype) if few else out
    return summed.view(clients, *side, channels, outputs)
