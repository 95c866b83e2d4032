"""Layers of images, (channel, y, x) sample after sample: convolution and pooling."""

from __future__ import annotations

import numpy as np

from dpfedls.engine.compiled.layers import ONCE, ZERO, copy, fill
from dpfedls.engine.compiled.products import add_combinations, add_dots
from dpfedls.engine.jit import jit

LANES = 16  # numbers of a processor's widest register: what is left of a row goes one by one


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
    length, plane, taps = _whole((out_height - 1) * line + out_width), lines * line, tall * wide
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
    length = _whole((out_height - 1) * line + out_width)
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
    length, plane = _whole((height - 1) * line + width), lines * line
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
def _whole(length):
    """So many numbers, rounded up to whole registers."""
    return (length + LANES - 1) // LANES * LANES


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
