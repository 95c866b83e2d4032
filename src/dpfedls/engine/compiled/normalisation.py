"""LayerNorm and GroupNorm: groups of one sample's values, each with mean 0 and variance 1.

A group is whole in a core's first cache while it is treated, so each array is read once from
further away. LayerNorm has a scale and a shift for each number of a group, GroupNorm for each
channel, which is an image: a loop over one of them would be a loop of length 1 for the other.
"""

from __future__ import annotations

import math

import numpy as np

from dpfedls.engine.compiled.arrays import ONE, ZERO, descend, fill, settle
from dpfedls.engine.jit import jit


def layer_norm(sizes, options, weights, x, y, kept, work):
    """``y = scale · (x − mean) / √(variance + ε) + shift``; keeps 1 / √…, and y before scaling."""
    size, groups = sizes[0], len(x) // sizes[0]
    own = settle(weights)
    shifts, normal = own[size:], kept[groups : groups + len(x)]
    for g in range(groups):
        at, to = g * size, (g + 1) * size
        kept[g] = _standardise(x[at:to], normal[at:to], options[0])
        n, out = normal[at:to], y[at:to]
        for t in range(size):
            out[t] = n[t]
        if len(own):
            for t in range(size):
                out[t] *= own[t]
        if len(shifts):
            for t in range(size):
                out[t] += shifts[t]


def layer_norm_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = (g − mean g − n · mean(g n)) / √…``, with g = scale · dy and n = y before scaling."""
    size, groups = sizes[0], len(x) // sizes[0]
    own, gradient = weights.values, weights.gradient[: len(weights.values)]
    normal, scaled, shifts = kept[groups : groups + len(x)], work.scratch[:size], gradient[size:]
    fill(gradient, ZERO)
    for g in range(groups):
        at, to = g * size, (g + 1) * size
        n, above = normal[at:to], d_y[at:to]
        if len(own):
            for t in range(size):
                gradient[t] += above[t] * n[t]
        if len(shifts):
            for t in range(size):
                shifts[t] += above[t]
        if len(d_x):
            for t in range(size):
                scaled[t] = above[t] * own[t] if len(own) else above[t]
            total = along = ZERO
            for t in range(size):
                total += scaled[t]
                along += scaled[t] * n[t]
            _centre(scaled, n, kept[g], ONE, total, along, size, d_x[at:to])
    return descend(weights, 0, gradient)


def group_norm(sizes, options, weights, x, y, kept, work):
    """The same with one scale and one shift for each channel."""
    size, channels, area = sizes[0], sizes[1], sizes[2]
    groups, own = len(x) // size, settle(weights)
    shifts, normal = own[channels:], kept[groups : groups + len(x)]
    for g in range(groups):
        at, to = g * size, (g + 1) * size
        kept[g] = _standardise(x[at:to], normal[at:to], options[0])
        for row in range(at // area, to // area):
            scale = own[row % channels] if len(own) else ONE
            shift = shifts[row % channels] if len(shifts) else ZERO
            for t in range(row * area, (row + 1) * area):
                y[t] = scale * normal[t] + shift


def group_norm_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The same; both means are sums of what the channels' own gradients add up."""
    size, channels, area = sizes[0], sizes[1], sizes[2]
    groups, own = len(x) // size, weights.values
    gradient = weights.gradient[: len(own)]
    normal, shifts = kept[groups : groups + len(x)], gradient[channels:]
    fill(gradient, ZERO)
    for g in range(groups):
        at, to = g * size, (g + 1) * size
        total = along = ZERO
        for row in range(at // area, to // area):
            channel, first, behind = row % channels, row * area, (row + 1) * area
            by_scale = by_shift = ZERO
            for t in range(first, behind):
                by_scale += d_y[t] * normal[t]
                by_shift += d_y[t]
            if len(own):
                gradient[channel] += by_scale
            if len(shifts):
                shifts[channel] += by_shift
            scale = own[channel] if len(own) else ONE
            total += scale * by_shift
            along += scale * by_scale
        for row in range(at // area if len(d_x) else 0, to // area if len(d_x) else 0):
            scale, first, behind = ONE, row * area, (row + 1) * area
            if len(own):
                scale = own[row % channels]
            above, n, out = d_y[first:behind], normal[first:behind], d_x[first:behind]
            _centre(above, n, kept[g], scale, total, along, size, out)
    return descend(weights, 0, gradient)


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
def _centre(above, normal, inverse, scale, total, along, size, d_x):
    """``dx = (scale · dy − total / size − n · along / size) / √…``, part of a group or all."""
    mean, along = total / np.float32(size), along / np.float32(size)
    for t in range(len(d_x)):
        d_x[t] = inverse * (scale * above[t] - mean - normal[t] * along)
