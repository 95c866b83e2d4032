"""The linear layer, on the last dimension of its inputs."""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, descend, fill, settle_part
from dpfedls.engine.compiled.products import combine_at, dots_at, rows_at
from dpfedls.engine.jit import jit

DEEPER = 4  # times as many rows at once backwards, where each lot reads and writes all of dx
# Rows enough to pay for putting the weights in columns, and rows too short for dot products.
_MANY, _SHORT = 64, 128


def linear(sizes, options, weights, x, y, kept, work):
    """``y = x Wᵀ + b``, with or without ``b``; W is put together a few rows at a time."""
    inputs, outputs, many = sizes[0], sizes[1], sizes[2]
    count, biases = len(x) // inputs, len(weights.centre) - inputs * outputs
    bias, part = work.scratch[:biases], work.scratch[biases:]
    settle_part(weights, inputs * outputs, bias)
    for s in range(count):
        for o in range(outputs):
            y[s * outputs + o] = bias[o] if len(bias) else ZERO
    if count >= _MANY and inputs <= _SHORT:
        _by_columns(weights, x, y, inputs, outputs, many * DEEPER, part, work)
        return
    rows_at(work.starts, many, inputs)
    for first in range(0, outputs, many):
        many = min(many, outputs - first)
        settle_part(weights, first * inputs, part[: many * inputs])
        dots_at(
            work.dots, x, inputs, count, part, work.starts, many, inputs, y[first:], outputs, ONCE,
            inputs, inputs,
        )  # fmt: skip


@jit
def _by_columns(weights, x, y, inputs, outputs, many, part, work):
    """``y += x Wᵀ`` for many short rows of x, where a dot product would end before it is fast."""
    centre, moved, inside = weights.centre, weights.moved, weights.inside
    for first in range(0, outputs, many):
        many = min(many, outputs - first)
        for o in range(many):
            at = (first + o) * inputs
            for k in range(inputs):
                part[k * many + o] = centre[at + k] + inside * moved[at + k]
        rows_at(work.starts, inputs, many)
        combine_at(
            work.combine, x, inputs, ONCE, len(x) // inputs, part, work.starts, inputs, many,
            y[first:], outputs, ONE,
        )  # fmt: skip


def linear_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy W``, ``dW = dyᵀ x``, ``db = Σ dy``; dW is never written, only the weights' step."""
    inputs, outputs, part, starts = sizes[0], sizes[1], work.scratch, work.starts
    count, bias = len(x) // inputs, inputs * outputs
    gradient = weights.gradient[: len(weights.centre) - bias]
    fill(gradient, ZERO)
    for s in range(count if len(gradient) else 0):
        for o in range(outputs):
            gradient[o] += d_y[s * outputs + o]
    if len(d_x):
        many = DEEPER * sizes[2]
        rows_at(starts, many, inputs)
        for first in range(0, outputs, many):
            many = min(many, outputs - first)
            settle_part(weights, first * inputs, part[: many * inputs])
            combine_at(
                work.combine, d_y[first:], outputs, ONCE, count, part, starts, many, inputs, d_x,
                inputs, ONE if first else ZERO,
            )  # fmt: skip
    moved, centre, scale = weights.moved, weights.centre, weights.keep * weights.inside
    if weights.keep != ONE:  # weight decay
        for t in range(bias):
            moved[t] = scale * moved[t] - (ONE - weights.keep) * centre[t]
        scale = ONE
    for t in range(len(d_y)):
        d_y[t] *= -weights.rate
    rows_at(starts, count, inputs)
    square = combine_at(
        work.combine, d_y, ONCE, outputs, outputs, x, starts, count, inputs, moved, inputs, scale
    )
    return square + descend(weights, bias, gradient)
