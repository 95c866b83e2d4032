"""Attention of each position to all positions of its own sample, and learned positions.

A position of a sample is a row of numbers. Rows lie sample after sample, or position after position
(see ``sequences``): two distances say which, so nothing is copied from one order to the other.
"""

from __future__ import annotations

import math

import numpy as np

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, descend, fill, settle
from dpfedls.engine.compiled.exponential import exponential
from dpfedls.engine.compiled.products import combine_at, rows_at
from dpfedls.engine.jit import jit


def attention(sizes, options, weights, x, y, kept, work):
    """``y = softmax(q kᵀ / √d) v`` for each head; a row of ``x`` holds q, k and v of all heads.

    ``kept`` holds the softmax of every sample and head.
    """
    positions, wide, heads, by_position = sizes[0], sizes[1], sizes[2], sizes[3]
    count, deep, square = len(y) // (positions * wide), wide // heads, positions * positions
    next_sample, next_position = _distances(count, positions, by_position)
    starts, keys, scale = work.starts, work.scratch[: deep * positions], _scale(deep)
    below, along = starts[:positions], starts[2 * positions :]
    rows_at(below, positions, 3 * wide * next_position)
    rows_at(along, deep, positions)
    for s in range(count):
        for h in range(heads):
            first = s * next_sample * 3 * wide + h * deep
            shares = kept[(s * heads + h) * square : (s * heads + h + 1) * square]
            _columns(x[first + wide :], keys, below, deep)
            combine_at(
                work.combine, x[first:], 3 * wide * next_position, ONCE, positions, keys, along,
                deep, positions, shares, positions, ZERO,
            )  # fmt: skip
            _softmax(shares, positions, scale)
            combine_at(
                work.combine, shares, positions, ONCE, positions, x[first + 2 * wide :], below,
                positions, deep, y[s * next_sample * wide + h * deep :], wide * next_position, ZERO,
            )  # fmt: skip


def attention_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """With p the softmax: ``dv = pᵀ dy`` and ``ds = p (dy vᵀ − Σ p dy vᵀ) / √d``.

    Then ``dq = ds k`` and ``dk = dsᵀ q``.
    """
    positions, wide, heads, by_position = sizes[0], sizes[1], sizes[2], sizes[3]
    count, deep, square = len(y) // (positions * wide), wide // heads, positions * positions
    next_sample, next_position = _distances(count, positions, by_position)
    row, row_above = 3 * wide * next_position, wide * next_position
    values, d_scores = work.scratch[: deep * positions], work.scratch[deep * positions :]
    below, above = work.starts[:positions], work.starts[positions : 2 * positions]
    along, scale = work.starts[2 * positions :], _scale(deep)
    rows_at(below, positions, row)
    rows_at(above, positions, row_above)
    rows_at(along, deep, positions)
    for s in range(count):
        for h in range(heads):
            first = s * next_sample * 3 * wide + h * deep
            d_out = d_y[s * next_sample * wide + h * deep :]
            shares = kept[(s * heads + h) * square : (s * heads + h + 1) * square]
            combine_at(
                work.combine, shares, ONCE, positions, positions, d_out, above, positions, deep,
                d_x[first + 2 * wide :], row, ZERO,
            )  # fmt: skip
            _columns(x[first + 2 * wide :], values, below, deep)
            combine_at(
                work.combine, d_out, row_above, ONCE, positions, values, along, deep, positions,
                d_scores, positions, ZERO,
            )  # fmt: skip
            for at in range(0, square, positions):
                to = at + positions
                _softmax_backward(shares[at:to], d_scores[at:to], scale)
            combine_at(
                work.combine, d_scores, positions, ONCE, positions, x[first + wide :], below,
                positions, deep, d_x[first:], row, ZERO,
            )  # fmt: skip
            combine_at(
                work.combine, d_scores, ONCE, positions, positions, x[first:], below, positions,
                deep, d_x[first + wide :], row, ZERO,
            )  # fmt: skip
    return ZERO


def position_embedding(sizes, options, weights, x, y, kept, work):
    """``y = x`` plus the weights of each position."""
    positions, wide, by_position = sizes[0], sizes[1], sizes[2]
    own, count = settle(weights), len(x) // (positions * wide)
    next_sample, next_position = _distances(count, positions, by_position)
    for s in range(count):
        for t in range(positions):
            at = (s * next_sample + t * next_position) * wide
            for k in range(wide):
                y[at + k] = x[at + k] + own[t * wide + k]


def position_embedding_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy``; the gradient of a position is the sum over samples."""
    positions, wide, by_position = sizes[0], sizes[1], sizes[2]
    count, gradient = len(d_y) // (positions * wide), weights.gradient[: positions * wide]
    next_sample, next_position = _distances(count, positions, by_position)
    fill(gradient, ZERO)
    for s in range(count):
        for t in range(positions):
            at = (s * next_sample + t * next_position) * wide
            for k in range(wide):
                gradient[t * wide + k] += d_y[at + k]
    for t in range(len(d_x)):
        d_x[t] = d_y[t]
    return descend(weights, 0, gradient)


@jit
def _distances(count, positions, by_position):
    """How many rows the next sample, and the next position, lie further on."""
    return (1, count) if by_position else (positions, 1)


@jit
def _scale(deep):
    return np.float32(1 / math.sqrt(deep))


@jit
def _columns(rows, out, starts, deep):
    """The first ``deep`` numbers of each row as columns: a short row would leave lanes idle."""
    for t in range(len(starts)):
        for k in range(deep):
            out[k * len(starts) + t] = rows[starts[t] + k]


@jit
def _softmax(scores, wide, scale):
    """``e^(scale · score)`` of rows, each divided by its sum, in place."""
    for at in range(0, len(scores), wide):
        row = scores[at : at + wide]
        highest = row[0]
        for k in range(1, wide):
            highest = max(highest, row[k])
        for k in range(wide):
            row[k] = scale * (row[k] - highest)
    for k in range(len(scores)):  # of all rows at once: a row may be too short for a fast loop
        scores[k] = exponential(scores[k])
    for at in range(0, len(scores), wide):
        row, total = scores[at : at + wide], ZERO
        for k in range(wide):
            total += row[k]
        share = ONE / total
        for k in range(wide):
            row[k] *= share


@jit
def _softmax_backward(shares, d_scores, scale):
    """``ds = scale · p (ds − Σ p ds)``, in place."""
    mean = ZERO
    for k in range(len(shares)):
        mean += shares[k] * d_scores[k]
    for k in range(len(shares)):
        d_scores[k] = scale * shares[k] * (d_scores[k] - mean)
