"""Convolution with stride 1, on images (channel, y, x)."""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, copy, descend, fill, settle
from dpfedls.engine.compiled.products import combine_at, dots_at
from dpfedls.engine.compiled.registers import LANES
from dpfedls.engine.jit import jit


def convolution(sizes, options, weights, x, y, kept, work):
    """Kernels of tall × wide over images padded with zeros; ``kept`` holds the padded images.

    A tap of a kernel sees the whole image shifted, as one long row. So lines of the result are as
    long as padded lines, and the pixels behind each line's end are dropped at last. Rows are
    rounded up to whole registers, so as many zeros stand behind each sample's images.
    """
    channels, height, width, outputs = sizes[0], sizes[1], sizes[2], sizes[3]
    tall, wide, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    line, lines = width + 2 * pad_x, height + 2 * pad_y
    out_width, out_height = line - wide + 1, lines - tall + 1
    length, plane, taps = _whole((out_height - 1) * line + out_width), lines * line, tall * wide
    own, long, area = settle(weights), work.scratch, out_height * out_width
    bias = own[outputs * channels * taps :]
    _taps(work.starts, channels, tall, wide, line, plane)
    for s in range(len(x) // (channels * height * width)):
        padded = kept[s * (channels * plane + LANES) :]
        _pad(x[s * channels * height * width :], padded, channels, height, width, pad_y, pad_x)
        for o in range(outputs):
            fill(long[o * length : (o + 1) * length], bias[o] if len(bias) else ZERO)
        combine_at(
            work.combine, own, channels * taps, ONCE, outputs, padded, work.starts,
            channels * taps, length, long, length, ONE,
        )  # fmt: skip
        for o in range(outputs):
            _lines(long[o * length :], y[(s * outputs + o) * area :], out_height, out_width, line)


def convolution_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The gradient of the kernels from the padded images, and of the inputs, if needed."""
    channels, height, width, outputs = sizes[0], sizes[1], sizes[2], sizes[3]
    tall, wide, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    line, lines = width + 2 * pad_x, height + 2 * pad_y
    out_width, out_height = line - wide + 1, lines - tall + 1
    area, plane, taps = out_height * out_width, lines * line, tall * wide
    length = _whole((out_height - 1) * line + out_width)
    gradient, long = weights.gradient[: len(weights.values)], work.scratch
    fill(gradient, ZERO)
    bias = gradient[outputs * channels * taps :]
    _taps(work.starts, channels, tall, wide, line, plane)
    for s in range(len(d_y) // (outputs * area)):
        for o in range(outputs):
            image = d_y[(s * outputs + o) * area : (s * outputs + o + 1) * area]
            _spread(image, long[o * length : (o + 1) * length], out_height, out_width, line)
            if len(bias):
                total = ZERO
                for t in range(area):
                    total += image[t]
                bias[o] += total
        padded = kept[s * (channels * plane + LANES) :]
        dots_at(
            work.dots, long, length, outputs, padded, work.starts, channels * taps, length,
            gradient, channels * taps,
        )  # fmt: skip
    if len(d_x):
        _inputs(sizes, weights.values, d_y, d_x, work)
    return descend(weights, 0, gradient)


@jit
def _inputs(sizes, weights, d_y, d_x, work):
    """``dx`` is the convolution of dy with kernels flipped in y and x, and channels transposed."""
    channels, height, width, outputs = sizes[0], sizes[1], sizes[2], sizes[3]
    tall, wide, pad_y, pad_x = sizes[4], sizes[5], sizes[6], sizes[7]
    out_width, out_height = width + 2 * pad_x - wide + 1, height + 2 * pad_y - tall + 1
    area, taps = out_height * out_width, tall * wide
    rest_y, rest_x = tall - 1 - pad_y, wide - 1 - pad_x
    line, lines = out_width + 2 * rest_x, out_height + 2 * rest_y
    length, plane = _whole((height - 1) * line + width), lines * line
    flipped = work.scratch[: channels * outputs * taps]
    for c in range(channels):
        for o in range(outputs):
            for k in range(taps):
                kernel = (o * channels + c) * taps
                flipped[(c * outputs + o) * taps + k] = weights[kernel + taps - 1 - k]
    padded = work.scratch[len(flipped) : len(flipped) + outputs * plane + LANES]
    long = work.scratch[len(flipped) + len(padded) :]
    _taps(work.starts, outputs, tall, wide, line, plane)
    for s in range(len(d_y) // (outputs * area)):
        _pad(d_y[s * outputs * area :], padded, outputs, out_height, out_width, rest_y, rest_x)
        combine_at(
            work.combine, flipped, outputs * taps, ONCE, channels, padded, work.starts,
            outputs * taps, length, long, length, ZERO,
        )  # fmt: skip
        for c in range(channels):
            at = (s * channels + c) * height * width
            _lines(long[c * length :], d_x[at:], height, width, line)


@jit
def _whole(length):
    """So many numbers, rounded up to whole registers."""
    return (length + LANES - 1) // LANES * LANES


@jit
def _taps(starts, channels, tall, wide, line, plane):
    """Where the row below each tap starts."""
    k = 0
    for c in range(channels):
        for y in range(tall):
            for x in range(wide):
                starts[k] = c * plane + y * line + x
                k += 1


@jit
def _pad(images, padded, channels, height, width, pad_y, pad_x):
    """Images with a margin of zeros."""
    line, lines = width + 2 * pad_x, height + 2 * pad_y
    fill(padded[: channels * lines * line + LANES], ZERO)
    for c in range(channels):
        for y in range(height):
            at, to = (c * height + y) * width, (c * lines + y + pad_y) * line + pad_x
            copy(images[at : at + width], padded[to : to + width])


@jit
def _lines(long, out, height, width, line):
    """The first ``width`` pixels of each longer line."""
    for y in range(height):
        copy(long[y * line : y * line + width], out[y * width : (y + 1) * width])


@jit
def _spread(image, long, height, width, line):
    """The transpose of ``_lines``: zeros behind each line's end."""
    fill(long, ZERO)
    for y in range(height):
        copy(image[y * width : (y + 1) * width], long[y * line : y * line + width])
