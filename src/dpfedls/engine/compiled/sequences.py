"""Layers of sequences, position after position: embedding, LSTM, and the last position."""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.layers import ONCE, ONE, TWO, ZERO, copy, fill
from dpfedls.engine.compiled.products import add_combinations, add_dots, rows_at
from dpfedls.engine.jit import jit


@jit
def embedding(symbols, y, weights, wide, positions):
    """A row of weights for each symbol, position by position."""
    count = len(symbols) // positions
    for s in range(count):
        for t in range(positions):
            at, of = (t * count + s) * wide, symbols[s * positions + t] * wide
            copy(weights[of : of + wide], y[at : at + wide])


@jit
def embedding_backward(symbols, d_y, gradient, wide, positions):
    """To the rows that were read."""
    count = len(symbols) // positions
    for s in range(count):
        for t in range(positions):
            at, of = (t * count + s) * wide, symbols[s * positions + t] * wide
            for k in range(wide):
                gradient[of + k] += d_y[at + k]


@jit
def last_position(x, y):
    """Of all positions the last."""
    copy(x[len(x) - len(y) :], y)


@jit
def last_position_backward(d_y, d_x, count):
    """Nothing to all others."""
    fill(d_x[: count - len(d_y)], ZERO)
    copy(d_y, d_x[count - len(d_y) : count])


@jit
def lstm(
    x, y, kept, weights, inputs, hidden, positions, starts, room, powers
):  # fmt: skip
    """One layer: gates in torch's order (input, forget, cell, output), states to ``y``.

    ``kept`` holds gates, cells and their tanh for the way back.
    """
    wide = 4 * hidden
    rows = len(x) // inputs
    count = rows // positions
    recurrent = wide * inputs
    bias = recurrent + wide * hidden
    by_input, by_state = room[: inputs * wide], room[inputs * wide : (inputs + hidden) * wide]
    _turn(weights, by_input, wide, inputs)
    _turn(weights[recurrent:], by_state, wide, hidden)
    gates, cells = kept[: rows * wide], kept[rows * wide : rows * (wide + hidden)]
    squashed = kept[rows * (wide + hidden) : rows * (wide + 2 * hidden)]
    for r in range(rows):
        for k in range(wide):
            gates[r * wide + k] = weights[bias + k] + weights[bias + wide + k]
    rows_at(starts, inputs, wide)
    add_combinations(x, inputs, ONCE, rows, by_input, starts, inputs, wide, gates, wide)
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
            add_combinations(
                before, hidden, ONCE, count, by_state, starts, hidden, wide, here, wide
            )
        _activate(here, count, hidden, powers)
        for s in range(count):
            i, f = here[s * wide : s * wide + hidden], here[s * wide + hidden :]
            g = here[s * wide + 2 * hidden :]
            for k in range(hidden):
                old = cells[at - count * hidden + s * hidden + k] if t > 0 else ZERO
                cell[s * hidden + k] = i[k] * g[k] + f[k] * old
        copy(cell, tanh_of)
        _tanh(tanh_of, powers)
        for s in range(count):
            o = here[s * wide + 3 * hidden :]
            for k in range(hidden):
                state[s * hidden + k] = o[k] * tanh_of[s * hidden + k]


@jit
def lstm_backward(
    x, y, d_y, d_x, kept, weights, gradient, inputs, hidden, positions, starts, room
):  # fmt: skip
    """Position by position from the last; gates give way to their own gradients."""
    wide = 4 * hidden
    rows = len(x) // inputs
    count = rows // positions
    size = count * hidden
    recurrent = wide * inputs
    bias = recurrent + wide * hidden
    gates, cells = kept[: rows * wide], kept[rows * wide : rows * (wide + hidden)]
    squashed = kept[rows * (wide + hidden) : rows * (wide + 2 * hidden)]
    by_input, by_state = room[: inputs * wide], room[inputs * wide : (inputs + hidden) * wide]
    _turn(weights, by_input, wide, inputs)
    _turn(weights[recurrent:], by_state, wide, hidden)
    room = room[(inputs + hidden) * wide :]
    later, d_cell, room = room[:size], room[size : 2 * size], room[2 * size :]
    fill(later, ZERO)
    fill(d_cell, ZERO)
    rows_at(starts, hidden, wide)
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
        fill(later, ZERO)
        here = gates[t * count * wide : (t + 1) * count * wide]
        add_dots(here, wide, count, by_state, starts, hidden, wide, later, hidden)
    fill(d_x[: rows * inputs], ZERO)
    rows_at(starts, inputs, wide)
    add_dots(gates, wide, rows, by_input, starts, inputs, wide, d_x, inputs)
    # Gates are long rows and inputs short ones, so the weights' gradients are made turned round.
    rows_at(starts, rows, wide)
    turned = room[: inputs * wide]
    fill(turned, ZERO)
    add_combinations(x, ONCE, inputs, inputs, gates, starts, rows, wide, turned, wide)
    _add_turned(turned, gradient, inputs, wide)
    turned = room[: hidden * wide]
    fill(turned, ZERO)
    later_gates = gates[count * wide :]  # each beside the state before it
    add_combinations(y, ONCE, hidden, hidden, later_gates, starts, rows - count, wide, turned, wide)
    _add_turned(turned, gradient[recurrent:], hidden, wide)
    for r in range(rows):
        for k in range(wide):
            gradient[bias + k] += gates[r * wide + k]
    for k in range(wide):
        gradient[bias + wide + k] += gradient[bias + k]


@jit
def _cell_backward(gates, before, squashed, d_y, later, d_cell):
    """One cell of one sample; without ``before`` it is the first position."""
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
        into = d * g[k] * i[k] * (ONE - i[k])
        g[k] = d * i[k] * (ONE - g[k] * g[k])
        i[k] = into


@jit
def _turn(matrix, turned, rows, columns):
    for r in range(rows):
        for c in range(columns):
            turned[c * rows + r] = matrix[r * columns + c]


@jit
def _add_turned(turned, matrix, rows, columns):
    for r in range(rows):
        for c in range(columns):
            matrix[c * rows + r] += turned[r * columns + c]


@jit
def _activate(gates, count, hidden, powers):
    """Sigmoid of input, forget and output gates, tanh of the cell's: 2 sigmoid(2x) - 1."""
    wide = 4 * hidden
    for s in range(count):
        cell = gates[s * wide + 2 * hidden : s * wide + 3 * hidden]
        for k in range(hidden):
            cell[k] *= TWO
    _sigmoid(gates, powers)
    for s in range(count):
        cell = gates[s * wide + 2 * hidden : s * wide + 3 * hidden]
        for k in range(hidden):
            cell[k] = TWO * cell[k] - ONE


@jit
def _tanh(values, powers):
    for t in range(len(values)):
        values[t] *= TWO
    _sigmoid(values, powers)
    for t in range(len(values)):
        values[t] = TWO * values[t] - ONE


@jit
def _sigmoid(values, powers):
    """``1 / (1 + e^-x)``; the library's exponential does not vectorise, so it is written out.

    e^-x = 2^k e^r with |r| ≤ ln 2 / 2; six terms of e^r are exact to 1.2e-7, and 2^k is written
    into the exponent of a float, as the integer that has its bits.
    """
    exponents = powers[: len(values)]
    scales = exponents.view(np.float32)
    for t in range(len(values)):
        z = min(max(-values[t], np.float32(-87)), np.float32(88))
        k = np.floor(z * np.float32(1.44269504) + np.float32(0.5))
        r = z - k * np.float32(0.693359375) + k * np.float32(2.12194440e-4)
        term = np.float32(1 / 120) + r * np.float32(1 / 720)
        term = np.float32(1 / 6) + r * (np.float32(1 / 24) + r * term)
        values[t] = ONE + r * (ONE + r * (np.float32(0.5) + r * term))
        exponents[t] = (np.int32(k) + np.int32(127)) << np.int32(23)
    for t in range(len(values)):
        values[t] = ONE / (ONE + values[t] * scales[t])
