"""The smallest parts of machine code: constants, and loops over one array."""

from __future__ import annotations

import numpy as np

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
def transpose(matrix, out, rows, columns):
    """``out = matrixᵀ``."""
    for r in range(rows):
        for c in range(columns):
            out[c * rows + r] = matrix[r * columns + c]


@jit
def add_transpose(matrix, out, rows, columns):
    """``out += matrixᵀ``."""
    for r in range(rows):
        for c in range(columns):
            out[c * rows + r] += matrix[r * columns + c]


@jit
def descend(weights, gradient, centre, rate, keep):
    """One step of SGD; the squared distance of the weights from the centre after it."""
    square = ZERO
    for t in range(len(weights)):
        moved = keep * weights[t] - rate * gradient[t]
        weights[t] = moved
        away = moved - centre[t]
        square += away * away
    return square
