"""The two matrix products that all layers use.

Each row of the second matrix starts where ``starts`` says: rows of a matrix lie a stride apart, and
the pixels below one tap of a convolution are a row too, so neither needs a copy. Both are called by
address (see ``calls``), so they are compiled once and not again in every layer.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from dpfedls.engine.compiled.arrays import ZERO
from dpfedls.engine.compiled.calls import called_as
from dpfedls.engine.compiled.registers import COLUMNS, LANES, ROWS, combine_block, dots_block
from dpfedls.engine.jit import jit

# Rows so many numbers apart lie in the same 8 places of a cache of 32 KiB.
_SAME_PLACE, _PLACES = 1024, 4


@jit
def rows_at(starts, count, stride):
    """``starts`` of rows a stride apart."""
    for k in range(count):
        starts[k] = k * stride


def combine(a, a_row, a_column, m, b, starts, count, length, out, out_stride, scale):
    """``out[i] = scale · out[i] + Σ_k a[i, k] · b[k]``, for rows of ``length``; Σ out².

    The first matrix has any two strides. A scale of zero forgets what was there, NaN too.
    """
    square, i = ZERO, 0
    blocks = (m + ROWS - 1) // ROWS
    while blocks > 0:
        rows = (m - i + blocks - 1) // blocks  # blocks of like height
        j = 0
        while j < length:
            vectors = COLUMNS if j + COLUMNS * LANES <= length else min(1, (length - j) // LANES)
            square += combine_block(
                rows, vectors, a[i * a_row :], a_row, a_column, b[j:], starts, count,
                out[i * out_stride + j :], out_stride, scale, length - j,
            )  # fmt: skip
            j += max(1, vectors) * LANES
        i += rows
        blocks -= 1
    return square


def dots(a, a_stride, m, b, starts, n, length, out, out_stride, pieces, a_apart, b_apart):
    """``out[i, j] += a[i] · b[j]``; rows are pieces of ``length`` numbers that lie apart."""
    most = _PLACES if a_stride % _SAME_PLACE == 0 else ROWS
    blocks, i = (m + most - 1) // most, 0
    while blocks > 0:
        rows = (m - i + blocks - 1) // blocks
        for j in range(0, n, COLUMNS):
            dots_block(
                rows, a[i * a_stride :], a_stride, b, starts[j:], min(COLUMNS, n - j), length,
                out[i * out_stride + j :], out_stride, pieces, a_apart, b_apart,
            )  # fmt: skip
        i += rows
        blocks -= 1


_f32: Any = types.Array(types.float32, 1, "C")
_i64: Any = types.Array(types.int64, 1, "C")
_n = types.int64
COMBINE = types.float32(_f32, _n, _n, _n, _f32, _i64, _n, _n, _f32, _n, types.float32)
DOTS = types.void(_f32, _n, _n, _f32, _i64, _n, _n, _f32, _n, _n, _n, _n)


def _combine_at(
    typing, address, a, a_row, a_column, m, b, starts, count, length, out, out_stride, scale
):
    """Call ``combine`` at an address."""
    return COMBINE.return_type(types.int64, *COMBINE.args), called_as(COMBINE)


def _dots_at(
    typing, address, a, a_stride, m, b, starts, n, length, out, out_stride, pieces, a_apart, b_apart
):
    """Call ``dots`` at an address."""
    return DOTS.return_type(types.int64, *DOTS.args), called_as(DOTS)


combine_at: Any = intrinsic(_combine_at)
dots_at: Any = intrinsic(_dots_at)
