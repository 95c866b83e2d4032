"""Layers of sequences: embedding, LSTM, and the last position.

Between these layers values lie position after position, each with all samples of the batch, so
that one position of the batch is one matrix.
"""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.activations import logistic
from dpfedls.engine.compiled.arrays import (
    ONCE,
    ONE,
    TWO,
    ZERO,
    add,
    copy,
    descend,
    fill,
    settle,
    transpose,
)
from dpfedls.engine.compiled.products import combine_at, rows_at
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


def lstm(sizes, options, weights, x, y, kept, work):
    """One layer: gates in torch's order (input, forget, cell, output), hidden states to ``y``.

    ``kept`` holds the gates, the cells and the tanh of the cells.
    """
    inputs, hidden, positions = sizes[0], sizes[1], sizes[2]
    wide = 4 * hidden
    rows = len(x) // inputs
    count = rows // positions
    own, scratch, starts = settle(weights), work.scratch, work.starts
    recurrent = wide * inputs
    bias = recurrent + wide * hidden
    by_input = scratch[: inputs * wide]
    by_state = scratch[inputs * wide : (inputs + hidden) * wide]
    transpose(own, by_input, wide, inputs)
    transpose(own[recurrent:], by_state, wide, hidden)
    gates, cells = kept[: rows * wide], kept[rows * wide : rows * (wide + hidden)]
    squashed = kept[rows * (wide + hidden) : rows * (wide + 2 * hidden)]
    both = scratch[(inputs + hidden) * wide :][:wide]
    for k in range(wide):
        both[k] = own[bias + k] + own[bias + wide + k]
    for r in range(rows):
        copy(both, gates[r * wide : (r + 1) * wide])
    rows_at(starts, inputs, wide)
    combine_at(
        work.combine, x, inputs, ONCE, rows, by_input, starts, inputs, wide, gates, wide, ONE
    )
    rows_at(starts, hidden, wide)
    for t in range(positions):
        here = gates[t * count * wide : (t + 1) * count * wide]
        at = t * count * hidden
        cell, tanh_of, state = (
            cells[at : at + count * hidden],
            squashed[at : at + count * hidden],
            y[at : at + count * hidden],
        )
        if t > 0:
            before = y[at - count * hidden : at]
            combine_at(
                work.combine, before, hidden, ONCE, count, by_state, starts, hidden, wide, here,
                wide, ONE,
            )  # fmt: skip
        _activate(here, count, hidden)
        for s in range(count):
            i, f = here[s * wide : s * wide + hidden], here[s * wide + hidden :]
            g, now = here[s * wide + 2 * hidden :], cell[s * hidden : (s + 1) * hidden]
            for k in range(hidden):
                now[k] = i[k] * g[k]
            if t > 0:
                old = cells[at + (s - count) * hidden :]
                for k in range(hidden):
                    now[k] += f[k] * old[k]
        for k in range(len(cell)):
            tanh_of[k] = TWO * logistic(TWO * cell[k]) - ONE
        for s in range(count):
            o = here[s * wide + 3 * hidden :]
            for k in range(hidden):
                state[s * hidden + k] = o[k] * tanh_of[s * hidden + k]


def lstm_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """Position by position from the last; the gates are replaced by their own gradients."""
    inputs, hidden, positions = sizes[0], sizes[1], sizes[2]
    wide = 4 * hidden
    rows = len(x) // inputs
    count = rows // positions
    size = count * hidden
    own, scratch, starts = weights.values, work.scratch, work.starts
    gradient = weights.gradient[: len(own)]
    recurrent = wide * inputs
    bias = recurrent + wide * hidden
    gates, cells = kept[: rows * wide], kept[rows * wide : rows * (wide + hidden)]
    squashed = kept[rows * (wide + hidden) : rows * (wide + 2 * hidden)]
    later, d_cell, scratch = scratch[:size], scratch[size : 2 * size], scratch[2 * size :]
    fill(later, ZERO)
    fill(d_cell, ZERO)
    rows_at(starts, wide, hidden)
    for t in range(positions - 1, -1, -1):
        for s in range(count):
            at = (t * count + s) * hidden
            _cell_backward(
                gates[(t * count + s) * wide : (t * count + s + 1) * wide],
                cells[at - size : at - size + hidden] if t > 0 else cells[:0],
                squashed[at : at + hidden],
                d_y[at : at + hidden],
                later[s * hidden : (s + 1) * hidden],
                d_cell[s * hidden : (s + 1) * hidden],
            )
        here = gates[t * count * wide : (t + 1) * count * wide]
        combine_at(
            work.combine, here, wide, ONCE, count, own[recurrent:], starts, wide, hidden, later,
            hidden, ZERO,
        )  # fmt: skip
    recurrent_gradients(sizes, wide, own, x, y, gates, gates, d_x, gradient, scratch, work)
    copy(gradient[bias : bias + wide], gradient[bias + wide :])
    return descend(weights, 0, gradient)


@jit
def recurrent_gradients(
    sizes, wide, weights, x, y, by_input, by_state, d_x, gradient, scratch, work
):
    """From the gates' gradients, of all positions, those of the inputs, weights and first bias.

    ``by_input`` are the gradients of what the inputs add to the gates, ``by_state`` of what the
    states add. Gates are long rows and inputs short ones, so those of the weights are computed as
    their transposes.
    """
    inputs, hidden, starts = sizes[0], sizes[1], work.starts
    rows = len(x) // inputs
    count, recurrent, bias = rows // sizes[2], wide * inputs, wide * (inputs + hidden)
    if len(d_x):
        rows_at(starts, wide, inputs)
        combine_at(
            work.combine, by_input, wide, ONCE, rows, weights, starts, wide, inputs, d_x, inputs,
            ZERO,
        )  # fmt: skip
    rows_at(starts, rows, wide)
    combine_at(
        work.combine, x, ONCE, inputs, inputs, by_input, starts, rows, wide, scratch, wide, ZERO
    )
    transpose(scratch, gradient, inputs, wide)
    following = by_state[count * wide :]  # each belongs to the state one position before it
    combine_at(
        work.combine, y, ONCE, hidden, hidden, following, starts, rows - count, wide, scratch,
        wide, ZERO,
    )  # fmt: skip
    transpose(scratch, gradient[recurrent:], hidden, wide)
    fill(gradient[bias:], ZERO)
    for r in range(rows):
        add(by_input[r * wide : (r + 1) * wide], gradient[bias : bias + wide])


@jit
def _cell_backward(gates, before, squashed, d_y, later, d_cell):
    """One cell of one sample; ``before`` is empty at the first position."""
    hidden = len(squashed)
    i, f = gates[:hidden], gates[hidden : 2 * hidden]
    g, o = gates[2 * hidden : 3 * hidden], gates[3 * hidden :]
    for k in range(hidden):
        d_state = d_y[k] + later[k]
        d = d_cell[k] + d_state * o[k] * (ONE - squashed[k] * squashed[k])
        o[k] = d_state * squashed[k] * o[k] * (ONE - o[k])
        d_cell[k] = d * f[k]
        old = before[k] if len(before) else ZERO
        f[k] = d * old * f[k] * (ONE - f[k])
        d_input = d * g[k] * i[k] * (ONE - i[k])
        g[k] = d * i[k] * (ONE - g[k] * g[k])
        i[k] = d_input


@jit
def _activate(gates, count, hidden):
    """Sigmoid of input, forget and output gates; of the cell's, ``tanh x = 2 σ(2x) − 1``."""
    wide = 4 * hidden
    for s in range(count):
        cell = gates[s * wide + 2 * hidden : s * wide + 3 * hidden]
        for k in range(hidden):
            cell[k] *= TWO
    for k in range(len(gates)):
        gates[k] = logistic(gates[k])
    for s in range(count):
        cell = gates[s * wide + 2 * hidden : s * wide + 3 * hidden]
        for k in range(hidden):
            cell[k] = TWO * cell[k] - ONE
