"""LayerNorm and GroupNorm: groups of one sample's values, each with mean 0 and variance 1.

Values are (…, parts, area), with one scale and one shift for each part: the parts of LayerNorm are
the positions of a group and its area is 1; the parts of GroupNorm are channels, its area an image.
"""

from __future__ import annotations

import math

import numpy as np

from dpfedls.engine.compiled.arrays import ONE, ZERO, descend, fill, settle
from dpfedls.engine.jit import jit


def normalise(sizes, options, weights, x, y, kept, work):
    """``y = scale · (x − mean) / √(variance + ε) + shift``; keeps 1 / √…, and y before scaling."""
    size, parts, area = sizes[0], sizes[1], sizes[2]
    groups, own, epsilon = len(x) // size, settle(weights), options[0]
    shifts = own[parts:]
    normal = kept[groups : groups + len(x)]
    for g in range(groups):
        kept[g] = _standardise(x[g * size : (g + 1) * size], normal[g * size :], epsilon)
    for row in range(len(x) // area):
        scale = own[row % parts] if len(own) else ONE
        shift = shifts[row % parts] if len(shifts) else ZERO
        for t in range(row * area, (row + 1) * area):
            y[t] = scale * normal[t] + shift


def normalise_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = (g − mean g − n · mean(g n)) / √…``, with g = scale · dy and n = y before scaling."""
    size, parts, area = sizes[0], sizes[1], sizes[2]
    groups, own, gradient = len(x) // size, weights.values, weights.gradient
    normal = kept[groups : groups + len(x)]
    scaled = work.scratch[: len(d_x)]
    shifts = gradient[parts : len(own)]
    fill(gradient[: len(own)], ZERO)
    for row in range(len(x) // area):
        part, at = row % parts, row * area
        scale = own[part] if len(own) else ONE
        if len(d_x):
            for t in range(at, at + area):
                scaled[t] = scale * d_y[t]
        if len(own):
            by_scale = by_shift = ZERO
            for t in range(at, at + area):
                by_scale += d_y[t] * normal[t]
                by_shift += d_y[t]
            gradient[part] += by_scale
            if len(shifts):
                shifts[part] += by_shift
    for g in range(len(d_x) // size):
        at, to = g * size, (g + 1) * size
        _standardise_backward(scaled[at:to], normal[at:to], kept[g], d_x[at:to])
    return descend(weights, 0, gradient[: len(own)])


@jit
def _standardise(x, out, epsilon):
    total = square = ZERO
    for t in range(len(x)):
        total += x[t]
    mean = total / np.float32(len(x))
    for t in range(len(x)):
        out[t] = x[t] - mean
    for t in range(len(x)):
        square += out[t] * out[t]
    inverse = ONE / np.float32(math.sqrt(square / np.float32(len(x)) + epsilon))
    for t in range(len(x)):
        out[t] *= inverse
    return inverse


@jit
def _standardise_backward(d_normal, normal, inverse, d_x):
    total = along = ZERO
    for t in range(len(d_x)):
        total += d_normal[t]
        along += d_normal[t] * normal[t]
    mean, along = total / np.float32(len(d_x)), along / np.float32(len(d_x))
    for t in range(len(d_x)):
        d_x[t] = inverse * (d_normal[t] - mean - normal[t] * along)
