"""One client's local SGD: gather a batch, forward, loss, backward with steps, projection."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types

from dpfedls.engine.compiled.arrays import ONE, ZERO, copy, fill
from dpfedls.engine.compiled.calls import Weights, Work, backward_at, forward_at
from dpfedls.engine.jit import jit

# The columns of a program's table, one row per layer. Places are those of one sample: those of a
# batch are as many times further on.
INPUTS, OUTPUTS, WEIGHT, WEIGHTS, AT_INPUT, AT_OUTPUT, AT_KEPT, KEPT, WANTED = range(9)
SIZES = 9  # from here on the layer's own sizes
COLUMNS = SIZES + 22


class Layers(NamedTuple):
    """The layers of a model, first to last."""

    calls: np.ndarray  # addresses of a layer's two functions
    table: np.ndarray
    options: np.ndarray
    products: np.ndarray  # addresses of ``combine`` and ``dots``


class Samples(NamedTuple):
    """The client's samples; one of ``features`` and ``tokens`` has no columns."""

    features: np.ndarray
    tokens: np.ndarray
    targets: np.ndarray
    batches: np.ndarray  # one row per step; a place below zero is no sample (see ``schedule``)
    start: int  # what places count from
    vocabulary: int


class Step(NamedTuple):
    """How far a step goes."""

    rate: Any
    keep: Any  # 1 − rate · weight decay
    radius: float  # of the ball around the centre


class Workspace(NamedTuple):
    """Memory for one client at a time; nothing of a client is read after its own call."""

    centre: np.ndarray  # where the weights start
    weights: np.ndarray
    moved: np.ndarray  # how far from the centre, see ``Weights``
    values: np.ndarray  # the batch, then what every layer computes and keeps
    above: np.ndarray  # the gradient of a layer's outputs,
    below: np.ndarray  # and of its inputs, which are the next layer's outputs: the two take turns
    gradient: np.ndarray  # of one layer's weights
    scratch: np.ndarray
    starts: np.ndarray
    targets: np.ndarray  # of the batch
    told: np.ndarray


def train(layers, samples, step, space):
    """Train from the centre; what is left in ``space.moved`` is the update.

    ``space.told`` then has the mean loss, that of the first batch and how long the first step was,
    for ``people.steps.following``. False where a token or a label is none that the model knows.
    """
    moved, inside, first, began, total = space.moved, ONE, 0.0, 0.0, 0.0
    fill(moved, ZERO)
    last = layers.table[len(layers.table) - 1]
    for number in range(len(samples.batches)):
        count = gather(samples.batches[number], samples, last[OUTPUTS], space)
        if count < 0:
            return False
        forward(layers, count, inside, step, space)
        at = count * last[AT_OUTPUT]
        scores = space.values[at : at + count * last[OUTPUTS]]
        loss = loss_gradient(scores, space.targets[:count], space.above)
        away = math.sqrt(backward(layers, count, inside, step, space))
        inside = np.float32(step.radius / away) if away > step.radius else ONE
        total += loss
        if number == 0:
            first, began = away, loss
    for t in range(len(moved)):
        moved[t] *= inside
    space.told[0] = total / max(1, len(samples.batches))
    space.told[1] = began
    space.told[2] = first
    return True


@jit
def gather(batch, samples, classes, space):
    """The batch's real samples, side by side; how many they are, or −1 if one is out of bounds.

    Later code trusts tokens and labels as places in memory, so they are checked here.
    """
    count, features, tokens = 0, samples.features, samples.tokens
    words = space.values.view(np.int32)
    for place in batch:
        if place >= 0:
            row = place - samples.start
            wide = features.shape[1]
            if wide:
                copy(features[row], space.values[count * wide : (count + 1) * wide])
            wide = tokens.shape[1]
            for t in range(wide):
                if not 0 <= tokens[row, t] < samples.vocabulary:
                    return -1
                words[count * wide + t] = tokens[row, t]
            if not 0 <= samples.targets[row] < classes:
                return -1
            space.targets[count] = samples.targets[row]
            count += 1
    return count


@jit
def forward(layers, count, inside, step, space):
    """Every layer's outputs, and what it keeps for its backward pass."""
    work = Work(space.scratch, space.starts, layers.products[0], layers.products[1])
    for number in range(len(layers.table)):
        row = layers.table[number]
        x, y, kept = _values(row, count, space)
        own = _weights(row, inside, step, space)
        forward_at(
            layers.calls[number, 0], row[SIZES:], layers.options[number], own, x, y, kept, work
        )


@jit
def backward(layers, count, inside, step, space):
    """From the gradient of the last outputs, in ``space.above``, to a step of every weight.

    Returns the squared distance of all weights from the centre. A gradient of weights is used where
    it is computed, and never exists as a whole. Layers before the first that trains are left out.
    """
    square, work = ZERO, Work(space.scratch, space.starts, layers.products[0], layers.products[1])
    d_y, d_x = space.above, space.below
    for number in range(len(layers.table) - 1, -1, -1):
        row = layers.table[number]
        x, y, kept = _values(row, count, space)
        own, wanted = _weights(row, inside, step, space), row[WANTED]
        square += backward_at(
            layers.calls[number, 1], row[SIZES:], layers.options[number], own, x, y, kept,
            d_y[: len(y)], d_x[: len(x) * wanted], work,
        )  # fmt: skip
        if not wanted:
            break
        d_y, d_x = d_x, d_y
    return square


@jit
def _values(row, count, space):
    """What a layer reads, what it writes, and what it keeps."""
    at_input, at_output, at_kept = row[AT_INPUT], row[AT_OUTPUT], row[AT_KEPT]
    return (
        space.values[count * at_input : count * (at_input + row[INPUTS])],
        space.values[count * at_output : count * (at_output + row[OUTPUTS])],
        space.values[count * at_kept : count * (at_kept + row[KEPT])],
    )


@jit
def _weights(row, inside, step, space):
    """A layer's own weights."""
    at, to = row[WEIGHT], row[WEIGHT] + row[WEIGHTS]
    own, centre, moved = space.weights[at:to], space.centre[at:to], space.moved[at:to]
    return Weights(own, centre, moved, space.gradient, inside, step.rate, step.keep)


@jit
def loss_gradient(scores, targets, gradient):
    """Of the mean cross-entropy, which is returned, by the scores: (softmax − one-hot) / count."""
    count, loss = len(targets), ZERO
    classes = len(scores) // max(1, count)
    for s in range(count):
        own, out = scores[s * classes : (s + 1) * classes], gradient[s * classes :]
        highest, total = own[0], ZERO
        for k in range(1, classes):
            highest = max(highest, own[k])
        for k in range(classes):
            out[k] = math.exp(own[k] - highest)
        for k in range(classes):  # a loop of its own: see ``jit``
            total += out[k]
        share = ONE / np.float32(count)
        loss += share * (highest - own[targets[s]] + math.log(total))
        for k in range(classes):
            out[k] *= share / total
        out[targets[s]] -= share
    return loss


def _array(kind: Any, dimensions: int) -> Any:
    return types.Array(kind, dimensions, "C")


_f32, _f64, _i64 = types.float32, types.float64, types.int64
_LAYERS = types.NamedTuple(
    (_array(_i64, 2), _array(_i64, 2), _array(_f32, 2), _array(_i64, 1)), Layers
)
_SAMPLES = types.NamedTuple(
    (_array(_f32, 2), _array(_i64, 2), _array(_i64, 1), _array(_i64, 2), _i64, _i64), Samples
)
_STEP = types.NamedTuple((_f32, _f32, _f64), Step)
_SPACE = types.NamedTuple(
    (*(_array(_f32, 1),) * 8, *(_array(_i64, 1),) * 2, _array(_f64, 1)), Workspace
)
TRAIN = types.boolean(_LAYERS, _SAMPLES, _STEP, _SPACE)
