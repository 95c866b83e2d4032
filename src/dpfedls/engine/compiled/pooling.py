"""Pooling of images (channel, y, x): the largest, or the mean, of each window."""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.arrays import ONE, ZERO, fill
from dpfedls.engine.jit import jit


@jit
def _inside(shift, stride, size, count):
    """Of ``count`` windows, which have their pixel at ``shift`` inside: the first, and one past."""
    return max(0, (-shift + stride - 1) // stride), min(count, (size - 1 - shift) // stride + 1)


def max_pool(sizes, options, weights, x, y, kept, work):
    """The largest of each window; ``kept`` holds where it stood, as integers."""
    height, width, tall, wide = sizes[0], sizes[1], sizes[2], sizes[3]
    stride_y, stride_x, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    down, across = sizes[8], sizes[9]
    places = kept.view(np.int32)
    for line in range(len(y) // across):  # of all planes together
        plane, j = line // down * height, line % down
        out, found = y[line * across : (line + 1) * across], places[line * across :]
        fill(out, np.float32(-np.inf))
        # Windows of −∞ alone have no largest: the gradient goes to their first pixel, as in torch.
        top = plane + max(0, j * stride_y - pad_y)
        for i in range(across):
            found[i] = top * width + max(0, i * stride_x - pad_x)
        for k in range(tall * wide):
            at_y, shift = j * stride_y + k // wide - pad_y, k % wide - pad_x
            if 0 <= at_y < height:
                first, behind = _inside(shift, stride_x, width, across)
                row = (plane + at_y) * width + shift
                for i in range(first, behind):
                    value = x[row + i * stride_x]
                    largest = value > out[i] or value != value  # NaN is larger than all, and stays
                    found[i] = row + i * stride_x if largest else found[i]
                    out[i] = value if largest else out[i]


def max_pool_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy`` where the largest stood, and zero at every other position."""
    places = kept.view(np.int32)
    fill(d_x, ZERO)
    for t in range(len(d_y) if len(d_x) else 0):
        d_x[places[t]] += d_y[t]
    return ZERO


def mean_pool(sizes, options, weights, x, y, kept, work):
    """The mean of each window, its margin of zeros included."""
    height, width, tall, wide = sizes[0], sizes[1], sizes[2], sizes[3]
    stride_y, stride_x, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    down, across = sizes[8], sizes[9]
    share = ONE / np.float32(tall * wide)
    for line in range(len(y) // across):
        plane, j = line // down * height, line % down
        out = y[line * across : (line + 1) * across]
        fill(out, ZERO)
        for k in range(tall * wide):
            at_y, shift = j * stride_y + k // wide - pad_y, k % wide - pad_x
            if 0 <= at_y < height:
                first, behind = _inside(shift, stride_x, width, across)
                row = (plane + at_y) * width + shift
                for i in range(first, behind):
                    out[i] += x[row + i * stride_x]
        for i in range(across):
            out[i] *= share


def mean_pool_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy / window`` for every pixel of a window."""
    height, width, tall, wide = sizes[0], sizes[1], sizes[2], sizes[3]
    stride_y, stride_x, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    down, across = sizes[8], sizes[9]
    share = ONE / np.float32(tall * wide)
    fill(d_x, ZERO)
    for line in range(len(d_y) // across if len(d_x) else 0):
        plane, j = line // down * height, line % down
        above = d_y[line * across : (line + 1) * across]
        for k in range(tall * wide):
            at_y, shift = j * stride_y + k // wide - pad_y, k % wide - pad_x
            if 0 <= at_y < height:
                first, behind = _inside(shift, stride_x, width, across)
                row = (plane + at_y) * width + shift
                for i in range(first, behind):
                    d_x[row + i * stride_x] += share * above[i]
    return ZERO
