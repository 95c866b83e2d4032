"""Layers of sequences: embedding, LSTM, and the last position.

Between these layers values lie position after position, each with all samples of the batch, so
that one position of the batch is one matrix.
"""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.arrays import (
    ZERO,
    copy,
    descend,
    fill,
    settle,
)
from dpfedls.engine.jit import jit


def embedding(sizes, options, weights, x, y, kept, work):
    """One row of the weights for each token; tokens are the integers with the bits of ``x``."""
    wide, positions = sizes[0], sizes[1]
    tokens, count, own = x.view(np.int32), len(x) // positions, settle(weights)
    for s in range(count):
        for t in range(positions):
            at, row = (t * count + s) * wide, np.int64(tokens[s * positions + t]) * wide
            copy(own[row : row + wide], y[at : at + wide])


def embedding_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The gradient of a row is the sum over the places where its token stood."""
    wide, positions = sizes[0], sizes[1]
    tokens, count = x.view(np.int32), len(x) // positions
    gradient = weights.gradient[: len(weights.values)]
    fill(gradient, ZERO)
    for s in range(count):
        for t in range(positions):
            at, row = (t * count + s) * wide, np.int64(tokens[s * positions + t]) * wide
            for k in range(wide):
                gradient[row + k] += d_y[at + k]
    return descend(weights, 0, gradient)


def swap(sizes, options, weights, x, y, kept, work):
    """From (first, second, wide) to (second, first, wide), one of the two being the samples."""
    wide, positions, by_position = sizes[0], sizes[1], sizes[2]
    count = len(x) // (wide * positions)
    if by_position:
        _swap(x, y, count, positions, wide)
    else:
        _swap(x, y, positions, count, wide)


def swap_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The same in the other direction."""
    wide, positions, by_position = sizes[0], sizes[1], sizes[2]
    count = len(d_x) // (wide * positions)
    if by_position:
        _swap(d_y, d_x, positions, count, wide)
    else:
        _swap(d_y, d_x, count, positions, wide)
    return ZERO


@jit
def _swap(x, y, first, second, wide):
    for a in range(first):
        for b in range(second):
            at, to = (a * second + b) * wide, (b * first + a) * wide
            copy(x[at : at + wide], y[to : to + wide])


def last_position(sizes, options, weights, x, y, kept, work):
    """Only the last position."""
    copy(x[len(x) - len(y) :], y)


def last_position_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """Zero gradient at every other position."""
    if len(d_x):
        fill(d_x[: len(d_x) - len(d_y)], ZERO)
        copy(d_y, d_x[len(d_x) - len(d_y) :])
    return ZERO
