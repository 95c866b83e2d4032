"""Convolution of images (channel, y, x): any strides, dilation, groups and padding with zeros.

Below one tap of a kernel lie as many pixels as a result has, each line as long as the result's. So
an image is copied once for each column of a kernel, shifted, and once for each rest of y by the
stride; then what lies below a tap is one row of numbers, and taps in one column of a kernel share
a copy. Products read these rows and write the results themselves. The copies are not kept: to make
them again takes less time than to fetch them from memory.
"""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, descend, fill, settle
from dpfedls.engine.compiled.products import combine_at, dots_at
from dpfedls.engine.compiled.registers import move, put_second, take_second
from dpfedls.engine.jit import jit

# What a convolution is, then what ``image_forms`` makes of it: lines of a copy, and how many
# samples' products are added up at once, since those of small images end before they are fast.
CHANNELS, HEIGHT, WIDTH, OUTPUTS, GROUPS, TALL, WIDE, TOP, LEFT = range(9)
STRIDE_Y, STRIDE_X, APART_Y, APART_X, DOWN, ACROSS, LINES, TOGETHER = range(9, 17)


def convolution(sizes, options, weights, x, y, kept, work):
    """``y = W · x + b``."""
    channels, outputs, groups = sizes[CHANNELS], sizes[OUTPUTS], sizes[GROUPS]
    pixels, length = sizes[HEIGHT] * sizes[WIDTH], sizes[DOWN] * sizes[ACROSS]
    each, inside, taps = outputs // groups, channels // groups, sizes[TALL] * sizes[WIDE]
    own, copies = settle(weights), work.scratch[: channels * _copied(sizes)]
    bias = own[outputs * inside * taps :]
    _taps(work.starts, sizes)
    fill(copies, ZERO)
    for s in range(len(x) // (channels * pixels)):
        _copy(x[s * channels * pixels :], copies, sizes)
        for o in range(outputs if len(bias) else 0):
            fill(y[(s * outputs + o) * length :][:length], bias[o])
        for g in range(groups):
            combine_at(
                work.combine, own[g * each * inside * taps :], inside * taps, ONCE, each,
                copies[g * inside * _copied(sizes) :], work.starts, inside * taps, length,
                y[(s * groups + g) * each * length :], length, ONE if len(bias) else ZERO,
            )  # fmt: skip


def convolution_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """The gradient of the kernels from the copies, and of the inputs, if needed."""
    channels, outputs, groups = sizes[CHANNELS], sizes[OUTPUTS], sizes[GROUPS]
    pixels, length = sizes[HEIGHT] * sizes[WIDTH], sizes[DOWN] * sizes[ACROSS]
    each, inside, taps = outputs // groups, channels // groups, sizes[TALL] * sizes[WIDE]
    gradient, together = weights.gradient[: len(weights.values)], sizes[TOGETHER]
    size, count = channels * _copied(sizes), len(d_y) // (outputs * length)
    copies, bias = work.scratch[: together * size], gradient[outputs * inside * taps :]
    fill(gradient, ZERO)
    _taps(work.starts, sizes)
    fill(copies, ZERO)
    for s in range(0, count, together):
        many = min(together, count - s)
        for k in range(many):
            _copy(x[(s + k) * channels * pixels :], copies[k * size :], sizes)
        for g in range(groups):
            dots_at(
                work.dots, d_y[(s * groups + g) * each * length :], length, each,
                copies[g * inside * _copied(sizes) :], work.starts, inside * taps, length,
                gradient[g * each * inside * taps :], inside * taps, many, outputs * length, size,
            )  # fmt: skip
    for row in range(count * outputs if len(bias) else 0):
        total, image = ZERO, d_y[row * length : (row + 1) * length]
        for t in range(len(image)):
            total += image[t]
        bias[row % outputs] += total
    if len(d_x):
        for phase in range(sizes[STRIDE_Y] * sizes[STRIDE_X]):
            for g in range(groups):
                _inputs(sizes, weights.values, d_y, d_x, phase, g, work)
    return descend(weights, 0, gradient)


@jit
def _rests(sizes):
    """How many rests of y by the stride taps see."""
    return min(sizes[STRIDE_Y], sizes[APART_Y] * (sizes[TALL] - 1) + 1)


@jit
def _copied(sizes):
    """How many numbers the copies of one channel have."""
    return sizes[WIDE] * _rests(sizes) * sizes[LINES] * sizes[ACROSS]


@jit
def _copy(images, copies, sizes):
    """All copies of one sample; what lies outside its images stays zero."""
    lines, across, rests = sizes[LINES], sizes[ACROSS], _rests(sizes)
    for column in range(sizes[WIDE]):
        for rest in range(rests):
            _shift(
                images, sizes[CHANNELS], sizes[HEIGHT], sizes[WIDTH],
                copies[(column * rests + rest) * lines * across :], _copied(sizes), lines, across,
                rest - sizes[TOP], sizes[STRIDE_Y],
                column * sizes[APART_X] - sizes[LEFT], sizes[STRIDE_X],
            )  # fmt: skip


@jit
def _shift(
    images, count, height, width, out, apart, lines, across, first_y, stride_y, first_x, stride_x
):
    """``out[j, i] = image[first_y + j · stride_y, first_x + i · stride_x]`` where there is one.

    So for all images; their copies lie apart.
    """
    if width == across == 1 and first_x == 0:  # upright lines: along them, not pixel by pixel
        height, width, lines, across = 1, height, 1, lines
        first_y, stride_y, first_x, stride_x = 0, 1, first_y, stride_y
    low = min(across, max(0, (stride_x - 1 - first_x) // stride_x))
    high = max(low, min(across, (width - 1 - first_x) // stride_x + 1))
    begin = max(0, (stride_y - 1 - first_y) // stride_y)
    end = max(begin, min(lines, (height - 1 - first_y) // stride_y + 1))
    at = (first_y + begin * stride_y) * width
    if width == across and stride_x == 1 and stride_y == 1:  # all lines at once, then the margins
        for image in range(count):
            _shift_lines(
                images[image * height * width + at :], out[image * apart + begin * across :],
                end - begin, across, first_x, low, high,
            )  # fmt: skip
        return
    at, many = at + first_x + low * stride_x, high - low
    for image in range(count if many else 0):
        for j in range(end - begin):
            pixel = image * height * width + at + j * stride_y * width
            to = image * apart + (begin + j) * across + low
            if stride_x == 1:
                move(images, pixel, out, to, many)
            elif stride_x == 2:
                take_second(images, pixel, out, to, many)
            else:
                for i in range(many):
                    out[to + i] = images[pixel + i * stride_x]


@jit
def _shift_lines(image, out, lines, across, by, low, high):
    move(image, max(0, by), out, max(0, -by), max(0, lines * across - abs(by)))
    for i in range(across - high + low):
        column = i if i < low else high + i - low
        for j in range(lines):
            out[j * across + column] = ZERO


@jit
def _taps(starts, sizes):
    """Where the row below each tap starts."""
    plane, rests, k = sizes[LINES] * sizes[ACROSS], _rests(sizes), 0
    for c in range(sizes[CHANNELS] // sizes[GROUPS]):
        for ky in range(sizes[TALL]):
            for kx in range(sizes[WIDE]):
                y = ky * sizes[APART_Y]
                number = (c * sizes[WIDE] + kx) * rests + y % sizes[STRIDE_Y]
                starts[k] = number * plane + y // sizes[STRIDE_Y] * sizes[ACROSS]
                k += 1


@jit
def _inputs(sizes, weights, d_y, d_x, phase, g, work):
    """One phase of ``dx``: a convolution of dy with the taps that see that phase.

    With strides, pixels of one rest of y and x by them are seen by the same taps: a phase.
    """
    channels, height, width, outputs = sizes[CHANNELS], sizes[HEIGHT], sizes[WIDTH], sizes[OUTPUTS]
    groups, down, across, wide = sizes[GROUPS], sizes[DOWN], sizes[ACROSS], sizes[WIDE]
    stride_y, stride_x, taps = sizes[STRIDE_Y], sizes[STRIDE_X], sizes[TALL] * wide
    each, inside, reach = outputs // groups, channels // groups, sizes[LINES] - down
    first_y, many_y, from_y = _phase(phase // stride_x, stride_y, sizes[TOP], height)
    first_x, many_x, from_x = _phase(phase % stride_x, stride_x, sizes[LEFT], width)
    if min(many_y, many_x) < 1:
        return
    plane, length, terms = (many_y + reach) * many_x, many_y * many_x, 0
    kernels, rest = work.scratch[: inside * each * taps], work.scratch[inside * each * taps :]
    copies, long = rest[: each * wide * plane], rest[each * wide * plane :]
    for o in range(each):
        for tap in range(taps):
            at_y, at_x = tap // wide * sizes[APART_Y], tap % wide * sizes[APART_X]
            if at_y % stride_y == phase // stride_x and at_x % stride_x == phase % stride_x:
                work.starts[terms] = (o * wide + tap % wide) * plane
                work.starts[terms] += (reach - at_y // stride_y) * many_x
                for c in range(inside):
                    tapped = ((g * each + o) * inside + c) * taps + tap
                    kernels[c * each * taps + terms] = weights[tapped]
                terms += 1
    fill(copies, ZERO)
    for s in range(len(d_x) // (channels * height * width)):
        for column in range(wide):
            at_x = column * sizes[APART_X]
            if at_x % stride_x == phase % stride_x:
                _shift(
                    d_y[(s * groups + g) * each * down * across :], each, down, across,
                    copies[column * plane :], wide * plane, many_y + reach, many_x,
                    first_y - reach, ONCE, first_x - at_x // stride_x, ONCE,
                )  # fmt: skip
        images = d_x[(s * groups + g) * inside * height * width :]
        whole = stride_y == 1 and stride_x == 1  # then a phase is all there is
        combine_at(
            work.combine, kernels, each * taps, ONCE, inside, copies, work.starts, terms, length,
            images if whole else long, length, ZERO,
        )  # fmt: skip
        if not whole and width == 1:
            for c in range(inside):
                _put(long, c * many_y, images, c * height + from_y, many_y, stride_y)
        elif not whole:
            for line in range(inside * many_y):
                c, j = line // many_y, line % many_y
                to = (c * height + from_y + j * stride_y) * width + from_x
                _put(long, line * many_x, images, to, many_x, stride_x)


@jit
def _put(source, at, target, to, count, stride):
    """``target[to:][::stride] = source[at:][:count]``."""
    if stride == 2:
        put_second(source, at, target, to, count)
    else:
        for i in range(count):
            target[to + i * stride] = source[at + i]


@jit
def _phase(rest, stride, margin, length):
    """The pixels of a phase: the place of the first in it, how many, and the first in the image."""
    first = (margin - rest + stride - 1) // stride
    many = (margin + length - 1 - rest) // stride - first + 1
    return first, many, first * stride + rest - margin
