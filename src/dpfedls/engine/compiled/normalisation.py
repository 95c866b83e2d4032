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
        mean, inverse = _moments(x[at:to], options[0])
        kept[g], row, n, out = inverse, x[at:to], normal[at:to], y[at:to]
        for t in range(size):
            n[t] = inverse * (row[t] - mean)
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
            total, along, out = total / np.float32(size), along / np.float32(size), d_x[at:to]
            for t in range(size):
                out[t] = kept[g] * (scaled[t] - total - n[t] * along)
    return descend(weights, 0, gradient)


def group_norm(sizes, options, weights, x, y, kept, work):
    """The same with one scale and one shift for each channel; keeps mean and 1 / √… alone."""
    size, channels, area = sizes[0], sizes[1], sizes[2]
    groups, own = len(x) // size, settle(weights)
    shifts = own[channels:]
    for g in range(groups):
        at, to = g * size, (g + 1) * size
        mean, inverse = _moments(x[at:to], options[0])
        kept[2 * g], kept[2 * g + 1] = mean, inverse
        for row in range(at // area, to // area):
            slope = inverse * own[row % channels] if len(own) else inverse
            shift = shifts[row % channels] if len(shifts) else ZERO
            shift -= mean * slope
            image, out = x[row * area : (row + 1) * area], y[row * area : (row + 1) * area]
            for t in range(area):
                out[t] = slope * image[t] + shift


def group_norm_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The same; both means are sums of what the channels' own gradients add up."""
    size, channels, area = sizes[0], sizes[1], sizes[2]
    groups, own = len(x) // size, weights.values
    gradient = weights.gradient[: len(own)]
    shifts, share = gradient[channels:], ONE / np.float32(size)
    fill(gradient, ZERO)
    for g in range(groups):
        at, to = g * size, (g + 1) * size
        mean, inverse = kept[2 * g], kept[2 * g + 1]
        total = along = ZERO
        for row in range(at // area, to // area):
            image, above = x[row * area : (row + 1) * area], d_y[row * area : (row + 1) * area]
            by_scale = by_shift = ZERO
            for t in range(area):
                by_scale += above[t] * (image[t] - mean)
                by_shift += above[t]
            by_scale *= inverse
            if len(own):
                gradient[row % channels] += by_scale
            if len(shifts):
                shifts[row % channels] += by_shift
            scale = own[row % channels] if len(own) else ONE
            total += scale * by_shift
            along += scale * by_scale
        # dx = (scale · dy − total / size − n · along / size) / √…, with n = (x − mean) / √…
        by_image = -inverse * inverse * along * share
        constant = -inverse * total * share - mean * by_image
        for row in range(at // area if len(d_x) else 0, to // area if len(d_x) else 0):
            slope = inverse * own[row % channels] if len(own) else inverse
            first, behind = row * area, (row + 1) * area
            image, above, out = x[first:behind], d_y[first:behind], d_x[first:behind]
            for t in range(area):
                out[t] = slope * above[t] + (by_image * image[t] + constant)
    return descend(weights, 0, gradient)


@jit
def _moments(x, epsilon):
    """The mean, and 1 / √(variance + ε)."""
    total = square = ZERO
    for t in range(len(x)):
        total += x[t]
    mean = total / np.float32(len(x))
    for t in range(len(x)):
        square += (x[t] - mean) * (x[t] - mean)
    return mean, ONE / np.float32(math.sqrt(square / np.float32(len(x)) + epsilon))
