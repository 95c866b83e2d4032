"""What dense layers do with a batch of one client's samples, forwards and backwards.

Values are flat arrays of float32, sample after sample. ``weights`` and ``gradient`` are those of
the layer alone, its tensors one behind the other as torch lists them; what goes backwards adds to
the gradient, which the caller has emptied. ``images`` and ``sequences`` keep to the same.
"""

from __future__ import annotations

import math

import numpy as np

from dpfedls.engine.compiled.products import add_combinations, add_dots, rows_at
from dpfedls.engine.jit import jit

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
ONCE = np.int64(1)  # a stride


@jit
def fill(out, value):
    """With one number."""
    for t in range(len(out)):
        out[t] = value


@jit
def copy(x, y):
    """Number by number."""
    for t in range(len(y)):
        y[t] = x[t]


@jit
def linear(x, y, weights, inputs, outputs, starts):
    """``y = x Wᵀ + b``, with or without ``b``."""
    count, bias = len(x) // inputs, weights[inputs * outputs :]
    for s in range(count):
        for o in range(outputs):
            y[s * outputs + o] = bias[o] if len(bias) else ZERO
    rows_at(starts, outputs, inputs)
    add_dots(x, inputs, count, weights, starts, outputs, inputs, y, outputs)


@jit
def linear_inputs(d_y, d_x, weights, inputs, outputs, starts):
    """The gradient of the inputs."""
    count = len(d_y) // outputs
    fill(d_x[: count * inputs], ZERO)
    rows_at(starts, outputs, inputs)
    add_combinations(d_y, outputs, ONCE, count, weights, starts, outputs, inputs, d_x, inputs)


@jit
def linear_rows(x, d_y, gradient, first, many, inputs, outputs, starts):
    """The gradient of some rows of the weights."""
    rows_at(starts, len(x) // inputs, inputs)
    add_combinations(
        d_y[first:], ONCE, outputs, many, x, starts, len(x) // inputs, inputs, gradient, inputs
    )


@jit
def linear_bias(d_y, gradient, outputs):
    """The gradient of the bias."""
    for s in range(len(d_y) // outputs):
        for o in range(outputs):
            gradient[o] += d_y[s * outputs + o]


@jit
def relu(x, y):
    """Nothing below zero; NaN stays."""
    for t in range(len(y)):
        y[t] = ZERO if x[t] < 0 else x[t]


@jit
def relu_backward(y, d_y, d_x):
    """Through where it was above zero."""
    for t in range(len(y)):
        d_x[t] = d_y[t] if y[t] > 0 else ZERO


@jit
def tanh(x, y):
    """Between -1 and 1."""
    for t in range(len(y)):
        y[t] = math.tanh(x[t])


@jit
def tanh_backward(y, d_y, d_x):
    """By its own value."""
    for t in range(len(y)):
        d_x[t] = d_y[t] * (ONE - y[t] * y[t])
