"""One position of an LSTM for all clients: one kernel forward, one backward.

Rows are (client, sample); tensors of one position are strided views of (client, position, sample,
width), so a row starts at client · stride + sample · width.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 1024  # per program


@triton.jit
def _places(n, batch, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = at // WIDTH
    return at, at < n, row, at % WIDTH, row // batch, row % batch


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _lstm_cell(
    driven, hidden, bias, cell_before, gates, cell, state,
    n, batch, driven_stride, before_stride, gates_stride, cell_stride, state_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _, mask, row, j, client, sample = _places(n, batch, WIDTH, BLOCK)
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
    """One position forward: gates (sum of driven, hidden and bias, activated), cell and state."""
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
    at, mask, _, j, client, sample = _places(n, batch, WIDTH, BLOCK)
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
    """One position backward: the gradient of the gates, and of the cell before, in place."""
    clients, batch, width = cell.shape
    n = clients * batch * width
    _lstm_cell_backward[(triton.cdiv(n, _ELEMENTS),)](
        from_above, from_later, d_cell, gates, cell, before, d_gates,
        n, batch, from_above.stride(0), gates.stride(0), cell.stride(0), before.stride(0),
        d_gates.stride(0), WIDTH=width, BLOCK=_ELEMENTS,
    )  # fmt: skip
