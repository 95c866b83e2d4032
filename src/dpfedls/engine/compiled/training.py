"""One client's local SGD: gather a batch, forwards, loss, backwards, step, back into the ball."""

from __future__ import annotations

import math

import numpy as np

from dpfedls.engine.compiled import images, layers, sequences
from dpfedls.engine.jit import jit

# The columns of a program's table, one row a layer. Places are those of one sample: a batch's are
# as many times further on.
KIND, INPUTS, OUTPUTS, WEIGHT, WEIGHTS, AT_INPUT, AT_OUTPUT, AT_KEPT = range(8)
A, B, C, D, E, F, G, H = range(8, 16)  # what a kind of layer makes of them is its own affair
COLUMNS = 16
LINEAR, RELU, TANH, CONVOLUTION, MAX_POOL, EMBEDDING, LSTM, LAST = range(8)
_AT_ONCE = 2**14  # weights whose gradient is made and used before the next: 64 KiB stay near


@jit
def train(
    table, centre, weights, features, symbols, alphabet, targets, rows, start, rate, keep, radius,
    values, slopes, places, gradient, room, starts, powers, batch_symbols, batch_targets,
):  # fmt: skip
    """Train from the centre on the batches in ``rows``; what is left in ``weights`` is the update.

    Rows count from ``start``; one below zero stands for no sample (see ``schedule``). What follows
    ``radius`` is room to work in, and keeps nothing from one call to the next. ``places`` is None
    where no layer is one of images, ``powers`` where none is one of sequences: their code is then
    not even compiled. False where a symbol or a label is none that the model knows.
    """
    layers.copy(centre, weights)
    last = table[len(table) - 1]
    for batch in rows:
        count = gather(
            batch, start, features, symbols, targets, alphabet, last[OUTPUTS], values,
            batch_symbols, batch_targets,
        )  # fmt: skip
        if count < 0:
            return False
        said = batch_symbols[: count * symbols.shape[1]]
        forward(table, weights, count, said, values, places, room, starts, powers)
        at = count * last[AT_OUTPUT]
        scores = values[at : at + count * last[OUTPUTS]]
        loss_slopes(scores, batch_targets[:count], slopes[0])
        square = backward(
            table, weights, centre, rate, keep, count, said, values, slopes, places, gradient, room,
            starts, powers,
        )  # fmt: skip
        if math.sqrt(square) > radius:
            inside = np.float32(radius / math.sqrt(square))
            for t in range(len(weights)):
                weights[t] = centre[t] + inside * (weights[t] - centre[t])
    for t in range(len(weights)):
        weights[t] -= centre[t]
    return True


@jit
def gather(
    batch, start, features, symbols, targets, alphabet, classes, values, batch_symbols,
    batch_targets,
):  # fmt: skip
    """The batch's real samples, side by side; how many they are, or -1 if one is out of bounds.

    Everything behind trusts symbols and labels as places in memory: here they are looked at.
    """
    count = 0
    for place in batch:
        if place >= 0:
            row = place - start
            wide = features.shape[1]
            if wide:
                layers.copy(features[row], values[count * wide : (count + 1) * wide])
            wide = symbols.shape[1]
            for t in range(wide):
                if not 0 <= symbols[row, t] < alphabet:
                    return -1
                batch_symbols[count * wide + t] = symbols[row, t]
            if not 0 <= targets[row] < classes:
                return -1
            batch_targets[count] = targets[row]
            count += 1
    return count


@jit
def forward(table, weights, count, symbols, values, places, room, starts, powers):
    """Every layer's outputs, and what it keeps for the way back."""
    for layer in table:
        kind, inputs, outputs = layer[KIND], layer[INPUTS], layer[OUTPUTS]
        own = weights[layer[WEIGHT] : layer[WEIGHT] + layer[WEIGHTS]]
        x = values[count * layer[AT_INPUT] : count * (layer[AT_INPUT] + inputs)]
        y = values[count * layer[AT_OUTPUT] : count * (layer[AT_OUTPUT] + outputs)]
        kept = values[count * layer[AT_KEPT] :]
        if kind == LINEAR:
            layers.linear(x, y, own, inputs, outputs, starts)
        elif kind == RELU:
            layers.relu(x, y)
        elif kind == TANH:
            layers.tanh(x, y)
        if places is not None:
            if kind == CONVOLUTION:
                images.convolution(
                    x, y, kept, own, layer[A], layer[B], layer[C], layer[D], layer[E], layer[F],
                    layer[G], layer[H], starts, room,
                )  # fmt: skip
            elif kind == MAX_POOL:
                found = places[count * layer[AT_KEPT] : count * (layer[AT_KEPT] + outputs)]
                images.max_pool(x, y, found, layer[A], layer[B])
        if powers is not None:
            if kind == EMBEDDING:
                sequences.embedding(symbols, y, own, layer[A], layer[B])
            elif kind == LSTM:
                sequences.lstm(x, y, kept, own, layer[A], layer[B], layer[C], starts, room, powers)
            elif kind == LAST:
                sequences.last_position(x, y)


@jit
def backward(
    table, weights, centre, rate, keep, count, symbols, values, slopes, places, gradient, room,
    starts, powers,
):  # fmt: skip
    """From the slopes of the last outputs, in ``slopes[0]``: each layer passes them on, then steps.

    The squared way that all weights are now from the centre. A gradient is used where it is made,
    and never exists as a whole.
    """
    square = np.float32(0)
    d_y, d_x = slopes[0], slopes[1]
    for number in range(len(table) - 1, -1, -1):
        layer = table[number]
        kind, inputs, outputs, wanted = layer[KIND], layer[INPUTS], layer[OUTPUTS], number > 0
        own = weights[layer[WEIGHT] : layer[WEIGHT] + layer[WEIGHTS]]
        start = centre[layer[WEIGHT] : layer[WEIGHT] + layer[WEIGHTS]]
        x = values[count * layer[AT_INPUT] : count * (layer[AT_INPUT] + inputs)]
        y = values[count * layer[AT_OUTPUT] : count * (layer[AT_OUTPUT] + outputs)]
        kept = values[count * layer[AT_KEPT] :]
        above = d_y[: count * outputs]
        found = gradient[: 0 if kind == LINEAR else layer[WEIGHTS]]
        if kind == LINEAR:
            if wanted:
                layers.linear_inputs(above, d_x, own, inputs, outputs, starts)
            many = max(1, _AT_ONCE // inputs)
            for first in range(0, outputs, many):
                many = min(many, outputs - first)
                at, size = first * inputs, many * inputs
                layers.fill(gradient[:size], layers.ZERO)
                layers.linear_rows(x, above, gradient, first, many, inputs, outputs, starts)
                square += descend(own[at : at + size], gradient, start[at:], rate, keep)
            bias = inputs * outputs
            layers.fill(gradient[:outputs], layers.ZERO)
            layers.linear_bias(above, gradient, outputs)
            square += descend(own[bias:], gradient, start[bias:], rate, keep)
        elif kind == RELU:
            layers.relu_backward(y, above, d_x)
        elif kind == TANH:
            layers.tanh_backward(y, above, d_x)
        layers.fill(found, layers.ZERO)
        if places is not None:
            if kind == CONVOLUTION:
                images.convolution_backward(
                    above, d_x, kept, own, found, layer[A], layer[B], layer[C], layer[D], layer[E],
                    layer[F], layer[G], layer[H], wanted, starts, room,
                )  # fmt: skip
            elif kind == MAX_POOL:
                stood = places[count * layer[AT_KEPT] : count * (layer[AT_KEPT] + outputs)]
                images.max_pool_backward(above, d_x, stood, count * inputs)
        if powers is not None:
            if kind == EMBEDDING:
                sequences.embedding_backward(symbols, above, found, layer[A], layer[B])
            elif kind == LSTM:
                sequences.lstm_backward(
                    x, y, above, d_x, kept, own, found, layer[A], layer[B], layer[C], starts, room
                )
            elif kind == LAST:
                sequences.last_position_backward(above, d_x, count * inputs)
        if kind != LINEAR:
            square += descend(own, found, start, rate, keep)
        d_y, d_x = d_x, d_y
    return square


@jit
def loss_slopes(scores, targets, slopes):
    """Of the mean cross-entropy, by the scores."""
    count = len(targets)
    classes = len(scores) // max(1, count)
    for s in range(count):
        own, out = scores[s * classes : (s + 1) * classes], slopes[s * classes :]
        highest, total = own[0], np.float32(0)
        for k in range(1, classes):
            highest = max(highest, own[k])
        for k in range(classes):
            out[k] = math.exp(own[k] - highest)
        for k in range(classes):  # by itself: see ``jit``
            total += out[k]
        share = np.float32(1) / np.float32(count)
        for k in range(classes):
            out[k] *= share / total
        out[targets[s]] -= share


@jit
def descend(weights, gradient, centre, rate, keep):
    """One step; how far the weights are from the centre now, squared."""
    rate, keep = np.float32(rate), np.float32(keep)
    square = np.float32(0)
    for t in range(len(weights)):
        moved = keep * weights[t] - rate * gradient[t]
        weights[t] = moved
        away = moved - centre[t]
        square += away * away
    return square
