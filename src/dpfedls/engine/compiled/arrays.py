"""The smallest parts of machine code: constants, and loops over one array."""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.registers import LANES, turn
from dpfedls.engine.jit import jit

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
ONCE = np.int64(1)  # a stride


@jit
def fill(out, value):
    """``out = value`` everywhere."""
    for t in range(len(out)):
        out[t] = value


@jit
def copy(x, y):
    """``y = x``, as far as y goes."""
    for t in range(len(y)):
        y[t] = x[t]


@jit
def add(x, y):
    """``y += x``."""
    for t in range(len(y)):
        y[t] += x[t]


@jit
def transpose(matrix, out, rows, columns, stride):
    """``out = matrixᵀ``, with rows a stride apart."""
    whole_rows, whole = rows // LANES * LANES, columns // LANES * LANES
    for r in range(0, whole_rows, LANES):
        for c in range(0, whole, LANES):
            turn(matrix[r * columns + c :], columns, out[c * stride + r :], stride)
    for r in range(rows):
        for c in range(whole if r < whole_rows else 0, columns):
            out[c * stride + r] = matrix[r * columns + c]


@jit
def settle(weights):
    """The weights themselves, in ``weights.values``."""
    settle_part(weights, 0, weights.values)
    return weights.values


@jit
def settle_part(weights, first, out):
    """As many of the weights from the first on as ``out`` has room for."""
    centre, moved, inside = weights.centre[first:], weights.moved[first:], weights.inside
    for t in range(len(out)):
        out[t] = centre[t] + inside * moved[t]


@jit
def descend(weights, first, gradient):
    """One step of SGD of the weights from the first on; their squared distance from the centre."""
    square, centre = ZERO, weights.centre[first:]
    moved = weights.moved[first : first + len(gradient)]
    scale, rate, lost = weights.keep * weights.inside, weights.rate, ONE - weights.keep
    for t in range(len(gradient)):
        now = scale * moved[t] - rate * gradient[t] - lost * centre[t]
        moved[t] = now
        square += now * now
    return square
