"""Pooling of images (channel, y, x): the largest, or the mean, of each window."""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.arrays import ONE, ZERO, fill
from dpfedls.engine.jit import jit


@jit
def _window(number, stride, padding, size, length):
    """Which pixels of a line a window covers: the first, and one past the last."""
    first = number * stride - padding
    return max(0, first), min(length, first + size)


def max_pool(sizes, options, weights, x, y, kept, work):
    """The largest of each window; ``kept`` holds where it stood, as integers."""
    height, width, tall, wide = sizes[0], sizes[1], sizes[2], sizes[3]
    stride_y, stride_x, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    down, across = sizes[8], sizes[9]
    places, usual = kept.view(np.int32), tall == wide == stride_y == stride_x == 2
    usual = usual and pad_y == pad_x == 0
    for line in range(len(y) // across):  # of all planes together
        plane, j = line // down * height, line % down
        top, bottom = _window(j, stride_y, pad_y, tall, height)
        if usual:
            at, to = line * across, (line + 1) * across
            _largest_of_four(x, (plane + top) * width, width, y[at:to], places[at:to])
            continue
        for i in range(across):
            left, right = _window(i, stride_x, pad_x, wide, width)
            # A window of −∞ alone has no largest: then it is the first pixel, as in torch.
            largest, place = np.float32(-np.inf), (plane + top) * width + left
            for row in range((plane + top) * width, (plane + bottom) * width, width):
                for t in range(row + left, row + right):
                    larger = x[t] > largest or x[t] != x[t]  # NaN is larger than all, and stays
                    place = t if larger else place
                    largest = x[t] if larger else largest
            y[line * across + i] = largest
            places[line * across + i] = place


@jit
def _largest_of_four(x, start, width, largest, places):
    """A line of windows of 2 × 2, many at once: the same without a loop over the window."""
    upper, lower = x[start : start + width], x[start + width : start + 2 * width]
    for i in range(len(largest)):
        value, place = upper[2 * i], 2 * i
        for pixel, t in (
            (upper[2 * i + 1], 2 * i + 1),
            (lower[2 * i], width + 2 * i),
            (lower[2 * i + 1], width + 2 * i + 1),
        ):
            larger = (pixel > value) | (pixel != pixel)
            value, place = pixel if larger else value, t if larger else place
        largest[i] = value
        places[i] = np.int32(start + place)


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
        top, bottom = _window(j, stride_y, pad_y, tall, height)
        for i in range(across):
            left, right = _window(i, stride_x, pad_x, wide, width)
            total = ZERO
            for row in range((plane + top) * width, (plane + bottom) * width, width):
                for t in range(row + left, row + right):
                    total += x[t]
            y[line * across + i] = share * total


def mean_pool_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy / window`` for every pixel of a window."""
    height, width, tall, wide = sizes[0], sizes[1], sizes[2], sizes[3]
    stride_y, stride_x, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    down, across = sizes[8], sizes[9]
    share = ONE / np.float32(tall * wide)
    fill(d_x, ZERO)
    for line in range(len(d_y) // across if len(d_x) else 0):
        plane, j = line // down * height, line % down
        top, bottom = _window(j, stride_y, pad_y, tall, height)
        for i in range(across):
            left, right = _window(i, stride_x, pad_x, wide, width)
            above = share * d_y[line * across + i]
            for row in range((plane + top) * width, (plane + bottom) * width, width):
                for t in range(row + left, row + right):
                    d_x[t] += above
    return ZERO
