"""Triton kernels for many clients at once on a GPU; each has a plain twin that tests hold it to.

Imported only where tensors are on a GPU: Triton comes with torch's CUDA builds.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 1024  # a program of a pointwise kernel handles so many


# ── LSTM cell ────────────────────────────────────────────────────────────────────────────────────
# Rows are (client, sample); tensors of one position are strided views of (client, position, sample,
# width), so a row's place is client · stride + sample · width.


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _lstm_cell(
    driven, hidden, bias, cell_before, gates, cell, state,
    n, batch, driven_stride, before_stride, gates_stride, cell_stride, state_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    row, j = at // WIDTH, at % WIDTH
    client, sample = row // batch, row % batch
    four = sample * 4 * WIDTH + j
    source = driven + client * driven_stride + four
    extra = hidden + row * 4 * WIDTH + j
    shift = bias + client * 4 * WIDTH + j
    z_i = tl.load(source, mask).to(tl.float32) + tl.load(extra, mask).to(tl.float32)
    z_f = tl.load(source + WIDTH, mask).to(tl.float32) + tl.load(extra + WIDTH, mask).to(tl.float32)
    z_g = tl.load(source + 2 * WIDTH, mask).to(tl.float32)
    z_g += tl.load(extra + 2 * WIDTH, mask).to(tl.float32)
    z_o = tl.load(source + 3 * WIDTH, mask).to(tl.float32)
    z_o += tl.load(extra + 3 * WIDTH, mask).to(tl.float32)
    i = tl.sigmoid(z_i + tl.load(shift, mask).to(tl.float32))
    f = tl.sigmoid(z_f + tl.load(shift + WIDTH, mask).to(tl.float32))
    g = _tanh(z_g + tl.load(shift + 2 * WIDTH, mask).to(tl.float32))
    o = tl.sigmoid(z_o + tl.load(shift + 3 * WIDTH, mask).to(tl.float32))
    one = sample * WIDTH + j
    c = f * tl.load(cell_before + client * before_stride + one, mask) + i * g
    tl.store(cell + client * cell_stride + one, c, mask)
    tl.store(state + client * state_stride + one, o * _tanh(c), mask)
    target = gates + client * gates_stride + four
    tl.store(target, i, mask)
    tl.store(target + WIDTH, f, mask)
    tl.store(target + 2 * WIDTH, g, mask)
    tl.store(target + 3 * WIDTH, o, mask)


def lstm_cell(
    driven: Tensor, hidden: Tensor, bias: Tensor, before: Tensor,
    gates: Tensor, cell: Tensor, state: Tensor,
) -> None:  # fmt: skip
    """One position: gates, cell and state from what drives them."""
    clients, batch, width = cell.shape
    n = clients * batch * width
    _lstm_cell[(triton.cdiv(n, _ELEMENTS),)](
        driven, hidden, bias, before, gates, cell, state,
        n, batch, driven.stride(0), before.stride(0), gates.stride(0), cell.stride(0),
        state.stride(0), WIDTH=width, BLOCK=_ELEMENTS,
    )  # fmt: skip


@triton.jit
def _lstm_cell_backward(
    from_above, from_later, d_cell, gates, cell, cell_before, d_gates,
    n, batch, above_stride, gates_stride, cell_stride, before_stride, d_gates_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    row, j = at // WIDTH, at % WIDTH
    client, sample = row // batch, row % batch
    one, four = sample * WIDTH + j, sample * 4 * WIDTH + j
    source = gates + client * gates_stride + four
    i = tl.load(source, mask).to(tl.float32)
    f = tl.load(source + WIDTH, mask).to(tl.float32)
    g = tl.load(source + 2 * WIDTH, mask).to(tl.float32)
    o = tl.load(source + 3 * WIDTH, mask).to(tl.float32)
    squashed = _tanh(tl.load(cell + client * cell_stride + one, mask))
    d_state = tl.load(from_above + client * above_stride + one, mask).to(tl.float32)
    d_state += tl.load(from_later + at, mask).to(tl.float32)
    d_c = tl.load(d_cell + at, mask) + d_state * o * (1 - squashed * squashed)
    before = tl.load(cell_before + client * before_stride + one, mask)
    target = d_gates + client * d_gates_stride + four
    tl.store(target, d_c * g * i * (1 - i), mask)
    tl.store(target + WIDTH, d_c * before * f * (1 - f), mask)
    tl.store(target + 2 * WIDTH, d_c * i * (1 - g * g), mask)
    tl.store(target + 3 * WIDTH, d_state * squashed * o * (1 - o), mask)
    tl.store(d_cell + at, d_c * f, mask)


def lstm_cell_backward(
    from_above: Tensor, from_later: Tensor, d_cell: Tensor,
    gates: Tensor, cell: Tensor, before: Tensor, d_gates: Tensor,
) -> None:  # fmt: skip
    """One position back: gradients of the gates, and in place of the cell before."""
    clients, batch, width = cell.shape
    n = clients * batch * width
    _lstm_cell_backward[(triton.cdiv(n, _ELEMENTS),)](
        from_above, from_later, d_cell, gates, cell, before, d_gates,
        n, batch, from_above.stride(0), gates.stride(0), cell.stride(0), before.stride(0),
        d_gates.stride(0), WIDTH=width, BLOCK=_ELEMENTS,
    )  # fmt: skip


def _positions(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.unbind(dim=1) for tensor in tensors), strict=True)


def lstm(driven: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, activated gates and cells (in float32) of every position."""
    clients, length, batch, _ = driven.shape
    driven, bias, turned, wide = driven.contiguous(), bias.contiguous(), weight.mT, weight.shape[2]
    gates = torch.empty_like(driven)
    states = driven.new_empty(clients, length, batch, wide)
    cells = driven.new_empty(clients, length, batch, wide, dtype=torch.float32)
    hidden = driven.new_zeros(clients, batch, 4 * wide)
    before, state = cells.new_zeros(clients, batch, wide), None
    for drive, gate, cell, new in _positions(driven, gates, cells, states):
        if state is not None:
            torch.bmm(state, turned, out=hidden)
        lstm_cell(drive, hidden, bias, before, gate, cell, new)
        before, state = cell, new
    return states, gates, cells


def lstm_backward(d_states: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    """The gradient of what drives the gates."""
    d_gates, d_states = torch.empty_like(gates), d_states.contiguous()
    d_cell, later = torch.zeros_like(cells[:, 0]), torch.zeros_like(d_states[:, 0])
    befores = (torch.zeros_like(d_cell), *cells.unbind(dim=1)[:-1])
    steps = zip(_positions(d_states, gates, cells, d_gates), befores, strict=True)
    for (above, gate, cell, d_gate), before in reversed(list(steps)):
        lstm_cell_backward(above, later, d_cell, gate, cell, before, d_gate)
        torch.bmm(d_gate, weight, out=later)
    return d_gates


def _channels_last(like: Tensor, n: int, b: int, c: int, h: int, w: int) -> Tensor:
    """An empty (n, b, c, h, w) that lies in memory as (n, b, h, w, c), and is nobody's view."""
    strides = (b * h * w * c, h * w * c, 1, w * c, c)
    return like.new_empty_strided((n, b, c, h, w), strides)


# ── Convolution ──────────────────────────────────────────────────────────────────────────────────
# Implicit matrix products: columns of patches are gathered on the way into the product and never
# written. Images are (client, sample, y, x, channel), strided as they like but for the channels;
# kernels are (client, tap, channel, output).


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
    out = _channels_last(images, clients, samples, outputs, out_height, out_width)
    rows = samples * out_height * out_width
    n = min(128, max(16, triton.next_power_of_2(outputs)))
    # The shapes of tiles are the fastest of a few tried on an H200.
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
    place = block * M + tl.arange(0, M)  # in the kernel: tap by tap, channel by channel
    if CHANNELS % M == 0:  # all of one tap
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
        slope = tl.load(
            gradients + row * OUTPUTS + column[None, :],
            (row < rows) & (column < OUTPUTS)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(patch), slope, total)
    size = SIDE_Y * SIDE_X * CHANNELS
    target = out + ((client * SHARES + share) * size + place)[:, None] * OUTPUTS + column[None, :]
    mask = (place < size)[:, None] & (column < OUTPUTS)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask)


def correlate(
    images: Tensor, gradients: Tensor, side: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """The kernels' gradient (n, ky, kx, c, o) of ``convolve``."""
    clients, samples, height, width, channels = images.shape
    _, _, out_height, out_width, outputs = gradients.shape
    few = channels % 64 != 0
    size = side[0] * side[1] * channels
    m, n = 128 if few else 64, min(128, max(16, triton.next_power_of_2(outputs)))
    # Few programs would leave most of the chip idle, so several share the rows of one.
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


# ── Pooling ──────────────────────────────────────────────────────────────────────────────────────
# Memory is (client · sample, y, x, channel); one program element makes one value of the output.


@triton.jit
def _largest(
    images, out, places, n, width, out_width, CHANNELS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    pixel, channel = at // CHANNELS, at % CHANNELS
    row, x = pixel // out_width, pixel % out_width  # rows of all images together
    first = images + (row * SIZE * width + x * SIZE) * CHANNELS + channel
    best = tl.load(first, mask, other=0.0)
    place = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, SIZE * SIZE):
        value = tl.load(first + ((k // SIZE) * width + k % SIZE) * CHANNELS, mask, other=0.0)
        place = tl.where(value > best, k, place)
        best = tl.maximum(value, best)
    tl.store(out + at, best, mask)
    tl.store(places + at, place.to(tl.uint8), mask)


def largest(images: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Of each tile of (n, b, c, h, w): its largest value, and the place it stands at."""
    rows = images.permute(0, 1, 3, 4, 2).contiguous()
    clients, batch, height, width, channels = rows.shape
    out = _channels_last(rows, clients, batch, channels, height // size, width // size)
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
    slope, place = tl.load(d_out + at, mask, other=0.0), tl.load(places + at, mask, other=0)
    for k in tl.static_range(SIZE * SIZE):
        value = tl.where(place == k, slope, 0.0).to(d_images.dtype.element_ty)
        tl.store(first + ((k // SIZE) * width + k % SIZE) * CHANNELS, value, mask)


def largest_backward(d_out: Tensor, places: Tensor, size: int) -> Tensor:
    """The gradient goes to the place of the largest value, and zero to the others."""
    rows = d_out.permute(0, 1, 3, 4, 2).contiguous()
    clients, batch, height, width, channels = rows.shape
    d_images = _channels_last(rows, clients, batch, channels, height * size, width * size)
    _largest_backward[(triton.cdiv(rows.numel(), _ELEMENTS),)](
        rows, places, d_images, rows.numel(), width * size, width,
        CHANNELS=channels, SIZE=size, BLOCK=_ELEMENTS,
    )  # fmt: skip
    return d_images


# ── Descent ──────────────────────────────────────────────────────────────────────────────────────


@triton.jit
def _descend(
    weights, gradients, centre, squares, size, blocks, rate, keep, BLOCK: tl.constexpr
):  # fmt: skip
    client, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    place = client * size + at
    w = tl.load(weights + place, mask, other=0.0) * keep
    w -= rate * tl.load(gradients + place, mask, other=0.0).to(tl.float32)
    tl.store(weights + place, w, mask)
    away = tl.where(mask, w - tl.load(centre + at, mask, other=0.0), 0.0)
    tl.store(squares + client * blocks + block, tl.sum(away * away))


def descend(weights: Tensor, gradients: Tensor, centre: Tensor, rate: float, keep: float) -> Tensor:
    """``weights ← keep · weights − rate · gradients``, in place; squared ways from the centre."""
    clients, size = len(weights), centre.numel()
    blocks = triton.cdiv(size, 4096)
    squares = weights.new_empty(clients, blocks)
    _descend[(blocks, clients)](
        weights, gradients, centre, squares, size, blocks, rate, keep, BLOCK=4096, num_warps=8
    )
    return squares.sum(dim=1)


@triton.jit
def _pull(weights, centre, inside, rounded, size, BLOCK: tl.constexpr):
    client, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    place = client * size + at
    w, c = tl.load(weights + place, mask), tl.load(centre + at, mask)
    scale = tl.load(inside + client)
    w = tl.where(scale < 1.0, c + scale * (w - c), w)
    tl.store(weights + place, w, mask)
    tl.store(rounded + place, w.to(rounded.dtype.element_ty), mask)


def pull(weights: Tensor, centre: Tensor, inside: Tensor, rounded: Tensor) -> None:
    """Towards the centre by each client's factor, in place, and a rounded copy to compute with."""
    clients, size = len(weights), centre.numel()
    _pull[(triton.cdiv(size, 4096), clients)](
        weights, centre, inside, rounded, size, BLOCK=4096, num_warps=8
    )
