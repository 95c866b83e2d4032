"""The linear layer, on the last dimension of its inputs."""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ZERO, descend, fill
from dpfedls.engine.compiled.products import add_combinations, add_dots, rows_at

_AT_ONCE = 2**14  # weights whose gradient is computed and used before the next: 64 KiB stay cached


def linear(sizes, options, weights, x, y, kept, work):
    """``y = x Wᵀ + b``, with or without ``b``."""
    inputs, outputs = sizes[0], sizes[1]
    count, bias = len(x) // inputs, weights.values[inputs * outputs :]
    for s in range(count):
        for o in range(outputs):
            y[s * outputs + o] = bias[o] if len(bias) else ZERO
    rows_at(work.starts, outputs, inputs)
    add_dots(x, inputs, count, weights.values, work.starts, outputs, inputs, y, outputs)


def linear_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy W``, ``dW = dyᵀ x``, ``db = Σ dy``; each part of dW is used before the next."""
    inputs, outputs = sizes[0], sizes[1]
    count, gradient, starts = len(x) // inputs, weights.gradient, work.starts
    own, centre, square = weights.values, weights.centre, ZERO
    if len(d_x):
        fill(d_x, ZERO)
        rows_at(starts, outputs, inputs)
        add_combinations(d_y, outputs, ONCE, count, own, starts, outputs, inputs, d_x, inputs)
    rows_at(starts, count, inputs)
    many = max(1, _AT_ONCE // inputs)
    for first in range(0, outputs, many):
        many = min(many, outputs - first)
        at, size = first * inputs, many * inputs
        fill(gradient[:size], ZERO)
        add_combinations(
            d_y[first:], ONCE, outputs, many, x, starts, count, inputs, gradient, inputs
        )
        square += descend(own[at : at + size], gradient, centre[at:], weights.rate, weights.keep)
    bias = inputs * outputs
    fill(gradient[:outputs], ZERO)
    for s in range(count):
        for o in range(outputs):
            gradient[o] += d_y[s * outputs + o]
    return square + descend(own[bias:], gradient, centre[bias:], weights.rate, weights.keep)
