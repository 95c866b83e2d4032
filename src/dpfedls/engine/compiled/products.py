"""The two matrix products that all layers use; both add to their result.

Each row of the second matrix starts where ``starts`` says: rows of a matrix lie a stride apart, and
the pixels below one tap of a convolution are a row too, so neither needs a copy.
Loops are unrolled by hand as far as registers go, so that a number once loaded serves many sums.
"""

from __future__ import annotations

import numpy as np

from dpfedls.engine.jit import jit

# A tile of the second matrix, 64 KiB, stays cached while every row of the result is visited.
_TILE = 512  # numbers of a row
_DEEP = 32  # rows


@jit
def rows_at(starts, count, stride):
    """``starts`` of rows a stride apart."""
    for k in range(count):
        starts[k] = k * stride


@jit
def add_dots(a, a_stride, m, b, starts, n, length, out, out_stride):
    """``out[i, j] += a[i] · b[j]``, for rows of ``length`` numbers."""
    i = 0
    while i + 4 <= m:
        p = i * a_stride
        a0 = a[p : p + length]
        a1 = a[p + a_stride : p + a_stride + length]
        a2 = a[p + 2 * a_stride : p + 2 * a_stride + length]
        a3 = a[p + 3 * a_stride : p + 3 * a_stride + length]
        j = 0
        while j + 2 <= n:
            b0 = b[starts[j] : starts[j] + length]
            b1 = b[starts[j + 1] : starts[j + 1] + length]
            s00 = s01 = s10 = s11 = s20 = s21 = s30 = s31 = np.float32(0)
            for t in range(length):
                x, y = b0[t], b1[t]
                s00 += a0[t] * x
                s01 += a0[t] * y
                s10 += a1[t] * x
                s11 += a1[t] * y
                s20 += a2[t] * x
                s21 += a2[t] * y
                s30 += a3[t] * x
                s31 += a3[t] * y
            q = i * out_stride + j
            out[q] += s00
            out[q + 1] += s01
            out[q + out_stride] += s10
            out[q + out_stride + 1] += s11
            out[q + 2 * out_stride] += s20
            out[q + 2 * out_stride + 1] += s21
            out[q + 3 * out_stride] += s30
            out[q + 3 * out_stride + 1] += s31
            j += 2
        if j < n:
            b0 = b[starts[j] : starts[j] + length]
            s0 = s1 = s2 = s3 = np.float32(0)
            for t in range(length):
                x = b0[t]
                s0 += a0[t] * x
                s1 += a1[t] * x
                s2 += a2[t] * x
                s3 += a3[t] * x
            q = i * out_stride + j
            out[q] += s0
            out[q + out_stride] += s1
            out[q + 2 * out_stride] += s2
            out[q + 3 * out_stride] += s3
        i += 4
    while i < m:
        a0 = a[i * a_stride : i * a_stride + length]
        for j in range(n):
            b0 = b[starts[j] : starts[j] + length]
            s0 = np.float32(0)
            for t in range(length):
                s0 += a0[t] * b0[t]
            out[i * out_stride + j] += s0
        i += 1


@jit
def add_combinations(a, a_row, a_column, m, b, starts, count, length, out, out_stride):
    """``out[i] += Σ_k a[i, k] · b[k]``, for rows of ``length`` numbers; a has any two strides."""
    for first in range(0, length, _TILE):
        n = min(_TILE, length - first)
        for k in range(0, count, _DEEP):
            deep = min(_DEEP, count - k)
            _add_tile(
                a[k * a_column :], a_row, a_column, m, b[first:], starts[k : k + deep], n,
                out[first:], out_stride,
            )  # fmt: skip


@jit
def _add_tile(a, a_row, a_column, m, b, starts, n, out, out_stride):
    count = len(starts)
    i = 0
    while i + 2 <= m:
        o0 = out[i * out_stride : i * out_stride + n]
        o1 = out[(i + 1) * out_stride : (i + 1) * out_stride + n]
        k = 0
        while k + 8 <= count:
            p = i * a_row + k * a_column
            x0, x1, x2, x3 = a[p], a[p + a_column], a[p + 2 * a_column], a[p + 3 * a_column]
            q = p + 4 * a_column
            x4, x5, x6, x7 = a[q], a[q + a_column], a[q + 2 * a_column], a[q + 3 * a_column]
            p += a_row
            y0, y1, y2, y3 = a[p], a[p + a_column], a[p + 2 * a_column], a[p + 3 * a_column]
            q = p + 4 * a_column
            y4, y5, y6, y7 = a[q], a[q + a_column], a[q + 2 * a_column], a[q + 3 * a_column]
            b0 = b[starts[k] : starts[k] + n]
            b1 = b[starts[k + 1] : starts[k + 1] + n]
            b2 = b[starts[k + 2] : starts[k + 2] + n]
            b3 = b[starts[k + 3] : starts[k + 3] + n]
            b4 = b[starts[k + 4] : starts[k + 4] + n]
            b5 = b[starts[k + 5] : starts[k + 5] + n]
            b6 = b[starts[k + 6] : starts[k + 6] + n]
            b7 = b[starts[k + 7] : starts[k + 7] + n]
            for t in range(n):
                o0[t] += (
                    x0 * b0[t] + x1 * b1[t] + x2 * b2[t] + x3 * b3[t]
                    + x4 * b4[t] + x5 * b5[t] + x6 * b6[t] + x7 * b7[t]
                )  # fmt: skip
                o1[t] += (
                    y0 * b0[t] + y1 * b1[t] + y2 * b2[t] + y3 * b3[t]
                    + y4 * b4[t] + y5 * b5[t] + y6 * b6[t] + y7 * b7[t]
                )  # fmt: skip
            k += 8
        while k + 2 <= count:
            p = i * a_row + k * a_column
            x0, x1, y0, y1 = a[p], a[p + a_column], a[p + a_row], a[p + a_row + a_column]
            b0 = b[starts[k] : starts[k] + n]
            b1 = b[starts[k + 1] : starts[k + 1] + n]
            for t in range(n):
                o0[t] += x0 * b0[t] + x1 * b1[t]
                o1[t] += y0 * b0[t] + y1 * b1[t]
            k += 2
        if k < count:
            x0, y0 = a[i * a_row + k * a_column], a[(i + 1) * a_row + k * a_column]
            b0 = b[starts[k] : starts[k] + n]
            for t in range(n):
                o0[t] += x0 * b0[t]
                o1[t] += y0 * b0[t]
        i += 2
    if i < m:
        o0 = out[i * out_stride : i * out_stride + n]
        for k in range(count):
            x0 = a[i * a_row + k * a_column]
            b0 = b[starts[k] : starts[k] + n]
            for t in range(n):
                o0[t] += x0 * b0[t]
