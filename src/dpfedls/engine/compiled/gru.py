"""The GRU, on values that lie position after position (see ``sequences``)."""

from __future__ import annotations

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
from dpfedls.engine.compiled.lstm import recurrent_gradients
from dpfedls.engine.compiled.products import combine_at, rows_at
from dpfedls.engine.jit import jit


def gru(sizes, options, weights, x, y, kept, work):
    """One layer: gates in torch's order (reset, update, new), hidden states to ``y``.

    ``kept`` holds the gates, and what the state before adds to them.
    """
    inputs, hidden, positions = sizes[0], sizes[1], sizes[2]
    wide, rows = 3 * hidden, len(x) // inputs
    count = rows // positions
    size = count * hidden
    own, scratch, starts = settle(weights), work.scratch, work.starts
    recurrent, bias = wide * inputs, wide * (inputs + hidden)
    by_input, by_state = scratch[: inputs * wide], scratch[inputs * wide :]
    transpose(own, by_input, wide, inputs, wide)
    transpose(own[recurrent:], by_state, wide, hidden, wide)
    gates, carried = kept[: rows * wide], kept[rows * wide :]
    for r in range(rows):
        copy(own[bias:], gates[r * wide : (r + 1) * wide])
        copy(own[bias + wide :], carried[r * wide : (r + 1) * wide])
    rows_at(starts, inputs, wide)
    combine_at(
        work.combine, x, inputs, ONCE, rows, by_input, starts, inputs, wide, gates, wide, ONE
    )
    rows_at(starts, hidden, wide)
    for t in range(positions):
        if t > 0:
            combine_at(
                work.combine, y[(t - 1) * size :], hidden, ONCE, count, by_state, starts, hidden,
                wide, carried[t * count * wide :], wide, ONE,
            )  # fmt: skip
        for r in range(t * count, (t + 1) * count):
            _cell(
                gates[r * wide : (r + 1) * wide],
                carried[r * wide : (r + 1) * wide],
                y[r * hidden - size : r * hidden - size + hidden] if t > 0 else y[:0],
                y[r * hidden : (r + 1) * hidden],
            )


def gru_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """Position by position from the last; what is kept is replaced by its own gradients."""
    inputs, hidden, positions = sizes[0], sizes[1], sizes[2]
    wide, rows = 3 * hidden, len(x) // inputs
    count = rows // positions
    size = count * hidden
    own, scratch, starts = weights.values, work.scratch, work.starts
    gradient = weights.gradient[: len(own)]
    recurrent, bias = wide * inputs, wide * (inputs + hidden)
    gates, carried = kept[: rows * wide], kept[rows * wide :]
    later, scratch = scratch[:size], scratch[size:]
    fill(later, ZERO)
    rows_at(starts, wide, hidden)
    for t in range(positions - 1, -1, -1):
        for s in range(count):
            r = t * count + s
            _cell_backward(
                gates[r * wide : (r + 1) * wide],
                carried[r * wide : (r + 1) * wide],
                y[r * hidden - size : r * hidden - size + hidden] if t > 0 else y[:0],
                d_y[r * hidden : (r + 1) * hidden],
                later[s * hidden : (s + 1) * hidden],
            )
        combine_at(
            work.combine, carried[t * count * wide :], wide, ONCE, count, own[recurrent:], starts,
            wide, hidden, later, hidden, ONE,
        )  # fmt: skip
    recurrent_gradients(sizes, wide, own, x, y, gates, carried, d_x, gradient, scratch, work)
    fill(gradient[bias:], ZERO)
    for r in range(rows):
        add(gates[r * wide : (r + 1) * wide], gradient[bias : bias + wide])
        add(carried[r * wide : (r + 1) * wide], gradient[bias + wide : bias + 2 * wide])
    return descend(weights, 0, gradient)


@jit
def _cell(gates, carried, before, state):
    """One cell of one sample; ``before`` is empty at the first position."""
    hidden = len(state)
    update, new, beside = gates[hidden : 2 * hidden], gates[2 * hidden :], carried[2 * hidden :]
    for k in range(2 * hidden):
        gates[k] = logistic(gates[k] + carried[k])
    for k in range(hidden):
        new[k] = TWO * logistic(TWO * (new[k] + gates[k] * beside[k])) - ONE  # tanh
    for k in range(hidden):
        old = before[k] if len(before) else ZERO
        state[k] = new[k] + update[k] * (old - new[k])


@jit
def _cell_backward(gates, carried, before, d_y, later):
    hidden = len(later)
    reset, update = gates[:hidden], gates[hidden : 2 * hidden]
    new, beside = gates[2 * hidden :], carried[2 * hidden :]
    for k in range(hidden):
        old = before[k] if len(before) else ZERO
        d_state = d_y[k] + later[k]
        d_new = d_state * (ONE - update[k]) * (ONE - new[k] * new[k])
        d_update = d_state * (old - new[k]) * update[k] * (ONE - update[k])
        d_reset = d_new * beside[k] * reset[k] * (ONE - reset[k])
        later[k] = d_state * update[k]
        beside[k] = d_new * reset[k]
        reset[k], update[k], new[k] = d_reset, d_update, d_new
    copy(gates, carried[: 2 * hidden])
