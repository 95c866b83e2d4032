"""What each layer does with a batch of one client's samples, forwards and backwards.

Values are flat arrays of float32, sample after sample; in an LSTM position after position, and
there sample after sample. ``weights`` and ``gradient`` are those of the layer alone, its tensors
one behind the other as torch lists them; what goes backwards adds to the gradient, which the caller
has emptied.
"""

from __future__ import annotations

import math

import numpy as np

from dpfedls.compiled.jit import jit
from dpfedls.compiled.products import add_combinations, add_dots, rows_at

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
ONCE = np.int64(1)  # a stride
LANES = 16  # numbers of a processor's widest register: what is left of a row goes one by one


@jit
def fill(out, value):
    """With one number."""
    for t in range(len(out)):
        out[t] = value


@jit
def whole(length):
    """So many numbers, rounded up to whole registers."""
    return (length + LANES - 1) // LANES * LANES


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


@jit
def convolution(
    x, y, padded, weights, channels, height, width, outputs, tall, wide,
    pad_y, pad_x, starts, room,
):  # fmt: skip
    """Kernels of tall × wide over images with a margin of zeros, which ``padded`` keeps.

    A tap of a kernel sees the whole image shifted, one long row; so lines are as long as those
    with margins, and what stands behind a line's real end is left out at last. Rows are rounded up
    to whole registers, so behind each sample's images stand as many zeros.
    """
    line, lines = width + 2 * pad_x, height + 2 * pad_y
    out_width, out_height = line - wide + 1, lines - tall + 1
    length, plane, taps = whole((out_height - 1) * line + out_width), lines * line, tall * wide
    bias = weights[outputs * channels * taps :]
    _taps(starts, channels, tall, wide, line, plane)
    for s in range(len(x) // (channels * height * width)):
        own = padded[s * (channels * plane + LANES) :]
        _pad(x[s * channels * height * width :], own, channels, height, width, pad_y, pad_x)
        for o in range(outputs):
            fill(room[o * length : (o + 1) * length], bias[o] if len(bias) else ZERO)
        add_combinations(
            weights, channels * taps, ONCE, outputs, own, starts, channels * taps, length,
            room, length,
        )  # fmt: skip
        area = out_height * out_width
        for o in range(outputs):
            _lines(room[o * length :], y[(s * outputs + o) * area :], out_height, out_width, line)


@jit
def convolution_backward(
    d_y, d_x, padded, weights, gradient, channels, height, width, outputs, tall, wide, pad_y, pad_x,
    wanted, starts, room,
):  # fmt: skip
    """As ``convolution``; the inputs' gradient is a convolution with the kernels turned round."""
    line, lines = width + 2 * pad_x, height + 2 * pad_y
    out_width, out_height = line - wide + 1, lines - tall + 1
    area, plane, taps = out_height * out_width, lines * line, tall * wide
    length = whole((out_height - 1) * line + out_width)
    count = len(d_y) // (outputs * area)
    bias = gradient[outputs * channels * taps :]
    _taps(starts, channels, tall, wide, line, plane)
    for s in range(count):
        for o in range(outputs):
            slopes = d_y[(s * outputs + o) * area : (s * outputs + o + 1) * area]
            _spread(slopes, room[o * length : (o + 1) * length], out_height, out_width, line)
            if len(bias):
                total = ZERO
                for t in range(area):
                    total += slopes[t]
                bias[o] += total
        own = padded[s * (channels * plane + LANES) :]
        add_dots(
            room, length, outputs, own, starts, channels * taps, length, gradient, channels * taps
        )
    if not wanted:
        return
    rest_y, rest_x = tall - 1 - pad_y, wide - 1 - pad_x
    line, lines = out_width + 2 * rest_x, out_height + 2 * rest_y
    length, plane = whole((height - 1) * line + width), lines * line
    turned = room[: channels * outputs * taps]
    for c in range(channels):
        for o in range(outputs):
            for k in range(taps):
                kernel = (o * channels + c) * taps
                turned[(c * outputs + o) * taps + k] = weights[kernel + taps - 1 - k]
    slopes = room[len(turned) : len(turned) + outputs * plane + LANES]
    out = room[len(turned) + len(slopes) :]
    _taps(starts, outputs, tall, wide, line, plane)
    for s in range(count):
        _pad(d_y[s * outputs * area :], slopes, outputs, out_height, out_width, rest_y, rest_x)
        fill(out[: channels * length], ZERO)
        add_combinations(
            turned, outputs * taps, ONCE, channels, slopes, starts, outputs * taps, length, out,
            length,
        )  # fmt: skip
        for c in range(channels):
            at = (s * channels + c) * height * width
            _lines(out[c * length :], d_x[at:], height, width, line)


@jit
def _taps(starts, channels, tall, wide, line, plane):
    """Where each tap's row begins."""
    k = 0
    for c in range(channels):
        for y in range(tall):
            for x in range(wide):
                starts[k] = c * plane + y * line + x
                k += 1


@jit
def _pad(images, padded, channels, height, width, pad_y, pad_x):
    line, lines = width + 2 * pad_x, height + 2 * pad_y
    fill(padded[: channels * lines * line + LANES], ZERO)
    for c in range(channels):
        for y in range(height):
            at, to = (c * height + y) * width, (c * lines + y + pad_y) * line + pad_x
            copy(images[at : at + width], padded[to : to + width])


@jit
def _lines(room, out, height, width, line):
    """Lines of so many real pixels, out of longer ones."""
    for y in range(height):
        copy(room[y * line : y * line + width], out[y * width : (y + 1) * width])


@jit
def _spread(images, room, height, width, line):
    """The way back: zeros behind every line's real end."""
    fill(room, ZERO)
    for y in range(height):
        copy(images[y * width : (y + 1) * width], room[y * line : y * line + width])


@jit
def max_pool(x, y, places, width, size):
    """The largest of each tile of each plane, and where it stood."""
    across = width // size
    for line in range(len(y) // across):  # of all planes together
        out, found = y[line * across : (line + 1) * across], places[line * across :]
        for j in range(across):
            out[j] = -np.inf
            found[j] = line * size * width + j * size
        for k in range(size * size):
            first = (line * size + k // size) * width + k % size
            row = x[first : first + (across - 1) * size + 1]
            for j in range(across):
                value = row[j * size]
                largest = value > out[j] or value != value  # NaN is larger than all, and stays
                found[j] = first + j * size if largest else found[j]
                out[j] = value if largest else out[j]


@jit
def max_pool_backward(d_y, d_x, places, count):
    """To where the largest stood."""
    fill(d_x[:count], ZERO)
    for t in range(len(d_y)):
        d_x[places[t]] += d_y[t]


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
