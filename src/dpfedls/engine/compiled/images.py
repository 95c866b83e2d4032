"""Convolution of images (channel, y, x): any strides, dilation, groups and padding with zeros.

A tap of a kernel sees the whole padded image shifted, as one long row, so no patches are copied.
With a stride it sees every so manieth pixel: the padded image is kept as its phases, one for each
rest of y and x by the strides, and a tap sees one phase shifted. Lines of a result are as long as
padded lines, and the pixels behind each line's end are dropped at last. Rows are rounded up to
whole registers, so zeros stand behind each sample's images.

A line has no margin of its own behind it: the margin before the next line serves both.
"""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, descend, fill, settle
from dpfedls.engine.compiled.products import combine_at, dots_at
from dpfedls.engine.compiled.registers import LANES, move
from dpfedls.engine.jit import jit

# What a convolution is, then what ``image_forms`` makes of it: lines of a phase and their length,
# the same for the padded gradient of the outputs, and its margins; how many samples' products are
# added up at once, since those of small images end before they are fast.
CHANNELS, HEIGHT, WIDTH, OUTPUTS, GROUPS, TALL, WIDE, TOP, LEFT = range(9)
STRIDE_Y, STRIDE_X, APART_Y, APART_X, DOWN, ACROSS = range(9, 15)
LINES, LINE, BACK_LINES, BACK_LINE, BACK_TOP, BACK_LEFT, TOGETHER = range(15, 22)


def convolution(sizes, options, weights, x, y, kept, work):
    """``y = W · x + b``; ``kept`` holds the phases of the padded images."""
    channels, outputs, groups, line = sizes[CHANNELS], sizes[OUTPUTS], sizes[GROUPS], sizes[LINE]
    down, across, pixels = sizes[DOWN], sizes[ACROSS], sizes[HEIGHT] * sizes[WIDTH]
    each, inside, taps = outputs // groups, channels // groups, sizes[TALL] * sizes[WIDE]
    length, phases = _whole((down - 1) * line + across), phases_of(sizes) * sizes[LINES] * line
    own, long = settle(weights), work.scratch
    bias = own[outputs * inside * taps :]
    _taps(work.starts, sizes)
    for s in range(len(x) // (channels * pixels)):
        padded = kept[s * (channels * phases + line + LANES) :]
        _pad(x[s * channels * pixels :], padded, sizes)
        for g in range(groups):
            for o in range(each):
                shift = bias[g * each + o] if len(bias) else ZERO
                fill(long[o * length : (o + 1) * length], shift)
            combine_at(
                work.combine, own[g * each * inside * taps :], inside * taps, ONCE, each,
                padded[g * inside * phases :], work.starts, inside * taps, length, long, length,
                ONE,
            )  # fmt: skip
            at = (s * groups + g) * each * down * across
            for o in range(each):
                for j in range(down):
                    move(long, o * length + j * line, y, at + (o * down + j) * across, across)


def convolution_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The gradient of the kernels from the padded images, and of the inputs, if needed."""
    channels, outputs, groups, line = sizes[CHANNELS], sizes[OUTPUTS], sizes[GROUPS], sizes[LINE]
    down, across = sizes[DOWN], sizes[ACROSS]
    each, inside, taps = outputs // groups, channels // groups, sizes[TALL] * sizes[WIDE]
    length, phases = _whole((down - 1) * line + across), phases_of(sizes) * sizes[LINES] * line
    gradient, together = weights.gradient[: len(weights.values)], sizes[TOGETHER]
    long, next_sample = work.scratch[: together * each * length], channels * phases + line + LANES
    fill(gradient, ZERO)
    bias = gradient[outputs * inside * taps :]
    _taps(work.starts, sizes)
    fill(long, ZERO)  # behind each line's end it stays zero
    for part in range(groups * (len(d_y) // (outputs * down * across))):
        s, g = part // groups, part % groups
        if s % together:  # added up with an earlier sample
            continue
        many = min(together, len(d_y) // (outputs * down * across) - s)
        for piece in range(many * each):
            k, o = piece // each, piece % each
            at = (((s + k) * groups + g) * each + o) * down * across
            for j in range(down):
                move(d_y, at + j * across, long, piece * length + j * line, across)
            if len(bias):
                total, image = ZERO, d_y[at : at + down * across]
                for t in range(len(image)):
                    total += image[t]
                bias[g * each + o] += total
        dots_at(
            work.dots, long, length, each, kept[s * next_sample + g * inside * phases :],
            work.starts, inside * taps, length, gradient[g * each * inside * taps :],
            inside * taps, many, each * length, next_sample,
        )  # fmt: skip
    if len(d_x):
        for phase in range(sizes[STRIDE_Y] * sizes[STRIDE_X]):
            for g in range(groups):
                _inputs(sizes, weights.values, d_y, d_x, phase, g, work)
    return descend(weights, 0, gradient)


@jit
def phases_of(sizes):
    """How many phases taps see."""
    return min(sizes[STRIDE_Y], sizes[APART_Y] * (sizes[TALL] - 1) + 1) * _phases_x(sizes)


@jit
def _phases_x(sizes):
    return min(sizes[STRIDE_X], sizes[APART_X] * (sizes[WIDE] - 1) + 1)


@jit
def _inputs(sizes, weights, d_y, d_x, phase, g, work):
    """One phase of ``dx``: a convolution of the padded dy with the taps that see that phase."""
    channels, height, width, outputs = sizes[CHANNELS], sizes[HEIGHT], sizes[WIDTH], sizes[OUTPUTS]
    groups, down, across = sizes[GROUPS], sizes[DOWN], sizes[ACROSS]
    stride_y, stride_x, taps = sizes[STRIDE_Y], sizes[STRIDE_X], sizes[TALL] * sizes[WIDE]
    lines, line, top, left = sizes[BACK_LINES], sizes[BACK_LINE], sizes[BACK_TOP], sizes[BACK_LEFT]
    each, inside = outputs // groups, channels // groups
    first_y, many_y, from_y = _phase(phase // stride_x, stride_y, sizes[TOP], height)
    first_x, many_x, from_x = _phase(phase % stride_x, stride_x, sizes[LEFT], width)
    if min(many_y, many_x) < 1:
        return
    length, kernels, terms = _whole((many_y - 1) * line + many_x), work.scratch, 0
    for o in range(each):
        for tap in range(taps):
            at_y, at_x = tap // sizes[WIDE] * sizes[APART_Y], tap % sizes[WIDE] * sizes[APART_X]
            if at_y % stride_y == phase // stride_x and at_x % stride_x == phase % stride_x:
                back = (first_y - at_y // stride_y + top) * line + first_x - at_x // stride_x
                work.starts[terms] = o * lines * line + back + left
                for c in range(inside):
                    tapped = ((g * each + o) * inside + c) * taps + tap
                    kernels[c * each * taps + terms] = weights[tapped]
                terms += 1
    padded = work.scratch[inside * each * taps :][: each * lines * line + line + LANES]
    long = work.scratch[inside * each * taps + len(padded) :]
    fill(padded, ZERO)
    for s in range(len(d_x) // (channels * height * width)):
        at = (s * groups + g) * each * down * across
        for o in range(each):
            for j in range(down):
                to = (o * lines + top + j) * line + left
                move(d_y, at + (o * down + j) * across, padded, to, across)
        combine_at(
            work.combine, kernels, each * taps, ONCE, inside, padded, work.starts, terms, length,
            long, length, ZERO,
        )  # fmt: skip
        for c in range(inside):
            image = ((s * groups + g) * inside + c) * height
            for j in range(many_y):
                at, to = c * length + j * line, (image + from_y + j * stride_y) * width + from_x
                if stride_x == 1:
                    move(long, at, d_x, to, many_x)
                else:
                    for i in range(many_x):
                        d_x[to + i * stride_x] = long[at + i]


@jit
def _phase(rest, stride, margin, length):
    """The pixels of a phase: the place of the first in it, how many, and the first in the image."""
    first = (margin - rest + stride - 1) // stride
    many = (margin + length - 1 - rest) // stride - first + 1
    return first, many, first * stride + rest - margin


@jit
def _whole(length):
    """So many numbers, rounded up to whole registers."""
    return (length + LANES - 1) // LANES * LANES


@jit
def _taps(starts, sizes):
    """Where the row below each tap starts."""
    plane, phases_x, stride_y, stride_x = (
        sizes[LINES] * sizes[LINE],
        _phases_x(sizes),
        sizes[STRIDE_Y],
        sizes[STRIDE_X],
    )
    phases, k = phases_of(sizes), 0
    for c in range(sizes[CHANNELS] // sizes[GROUPS]):
        for ky in range(sizes[TALL]):
            for kx in range(sizes[WIDE]):
                y, x = ky * sizes[APART_Y], kx * sizes[APART_X]
                phase = y % stride_y * phases_x + x % stride_x
                starts[k] = (c * phases + phase) * plane + y // stride_y * sizes[LINE]
                starts[k] += x // stride_x
                k += 1


@jit
def _pad(images, padded, sizes):
    """The phases of images with a margin of zeros; a pixel that no tap sees is left out."""
    height, width, line, lines = sizes[HEIGHT], sizes[WIDTH], sizes[LINE], sizes[LINES]
    stride_y, stride_x, phases, phases_x = (
        sizes[STRIDE_Y],
        sizes[STRIDE_X],
        phases_of(sizes),
        _phases_x(sizes),
    )
    fill(padded[: sizes[CHANNELS] * phases * lines * line + line + LANES], ZERO)
    for c in range(sizes[CHANNELS]):
        for phase in range(phases):
            rest_y, rest_x = phase // phases_x, phase % phases_x
            first_y, many_y, from_y = _phase(rest_y, stride_y, sizes[TOP], height)
            first_x, many_x, from_x = _phase(rest_x, stride_x, sizes[LEFT], width)
            many_y, many_x = min(many_y, lines - first_y), min(many_x, line - first_x)
            for j in range(many_y):
                at = (c * height + from_y + j * stride_y) * width + from_x
                to = ((c * phases + phase) * lines + first_y + j) * line + first_x
                if stride_x == 1:
                    move(images, at, padded, to, many_x)
                else:
                    for i in range(many_x):
                        padded[to + i] = images[at + i * stride_x]
