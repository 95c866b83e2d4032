"""The LSTM, on values that lie position after position (see ``sequences``)."""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, copy, descend, fill, settle, transpose
from dpfedls.engine.compiled.cells import lstm_cells, lstm_cells_backward
from dpfedls.engine.compiled.products import combine_at, rows_at
from dpfedls.engine.compiled.registers import COLUMNS, LANES, move
from dpfedls.engine.jit import jit

PANEL = COLUMNS * LANES  # columns of the weights that one block of a product sees


def lstm(sizes, options, weights, x, y, kept, work):
    """One layer: gates in torch's order (input, forget, cell, output), hidden states to ``y``.

    ``kept`` holds the gates, the cells and the tanh of the cells. Inputs, state before and a one
    stand side by side in ``given``, so all that a position adds to its gates is one product, which
    ends while they are in the first cache.
    """
    inputs, hidden, positions = sizes[0], sizes[1], sizes[2]
    wide, terms = 4 * hidden, inputs + hidden + 1
    rows = len(x) // inputs
    count, starts = rows // positions, work.starts
    size = count * hidden
    panels = (wide + PANEL - 1) // PANEL * PANEL * terms
    by_term, given = work.scratch[:panels], work.scratch[panels : panels + count * terms]
    nothing = work.scratch[panels + count * terms :][:size]
    _put_in_panels(settle(weights), by_term, inputs, hidden)
    gates, cells = kept[: rows * wide], kept[rows * wide : rows * (wide + hidden)]
    squashed = kept[rows * (wide + hidden) : rows * (wide + 2 * hidden)]
    fill(nothing, ZERO)
    fill(given, ONE)
    rows_at(starts, terms, PANEL)
    for t in range(positions):
        at = t * size
        here = gates[4 * at : 4 * (at + size)]
        for s in range(count):
            move(x, (t * count + s) * inputs, given, s * terms, inputs)
            if t > 0:
                move(y, at - size + s * hidden, given, s * terms + inputs, hidden)
            else:
                move(nothing, 0, given, s * terms + inputs, hidden)
        for first in range(0, wide, PANEL):
            combine_at(
                work.combine, given, terms, ONCE, count, by_term[first * terms :], starts, terms,
                min(PANEL, wide - first), here[first:], wide, ZERO,
            )  # fmt: skip
        before = cells[at - size : at] if t > 0 else nothing
        lstm_cells(here, before, cells[at:], squashed[at:], y[at:], count, hidden)


@jit
def _put_in_panels(weights, out, inputs, hidden):
    """The gates' columns, ``PANEL`` at a time: of every input, of every state, and of the biases.

    In rows of all gates each would take the place of another in the first cache.
    """
    wide, terms = 4 * hidden, inputs + hidden + 1
    recurrent, bias = wide * inputs, wide * (inputs + hidden)
    for first in range(0, wide, PANEL):
        columns, panel = min(PANEL, wide - first), out[first * terms :]
        transpose(weights[first * inputs :], panel, columns, inputs, PANEL)
        by_state = weights[recurrent + first * hidden :]
        transpose(by_state, panel[inputs * PANEL :], columns, hidden, PANEL)
        for gate in range(columns):
            both = weights[bias + first + gate] + weights[bias + wide + first + gate]
            panel[(terms - 1) * PANEL + gate] = both


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
    bias = gradient[recurrent + wide * hidden :]
    gates, cells = kept[: rows * wide], kept[rows * wide : rows * (wide + hidden)]
    squashed = kept[rows * (wide + hidden) : rows * (wide + 2 * hidden)]
    later, d_cell, nothing = scratch[:size], scratch[size : 2 * size], scratch[2 * size : 3 * size]
    fill(scratch[: 3 * size], ZERO)
    fill(bias, ZERO)
    rows_at(starts, wide, hidden)
    for t in range(positions - 1, -1, -1):
        at = t * size
        here = gates[4 * at : 4 * (at + size)]
        before = cells[at - size : at] if t > 0 else nothing
        lstm_cells_backward(
            here, before, squashed[at:], d_y[at:], later, d_cell, bias, count, hidden
        )
        combine_at(
            work.combine, here, wide, ONCE, count, own[recurrent:], starts, wide, hidden, later,
            hidden, ZERO,
        )  # fmt: skip
    recurrent_gradients(sizes, wide, own, x, y, gates, gates, d_x, gradient, scratch, work)
    copy(bias[:wide], bias[wide:])
    return descend(weights, 0, gradient)


@jit
def recurrent_gradients(
    sizes, wide, weights, x, y, by_input, by_state, d_x, gradient, scratch, work
):
    """From the gates' gradients, of all positions, those of the inputs and of the weights.

    ``by_input`` are the gradients of what the inputs add to the gates, ``by_state`` of what the
    states add. Gates are long rows and inputs short ones, so those of the weights are computed as
    their transposes.
    """
    inputs, hidden, starts = sizes[0], sizes[1], work.starts
    rows = len(x) // inputs
    count, recurrent = rows // sizes[2], wide * inputs
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
    transpose(scratch, gradient, inputs, wide, inputs)
    following = by_state[count * wide :]  # each belongs to the state one position before it
    combine_at(
        work.combine, y, ONCE, hidden, hidden, following, starts, rows - count, wide, scratch,
        wide, ZERO,
    )  # fmt: skip
    transpose(scratch, gradient[recurrent:], hidden, wide, hidden)
