"""Any other convolution (strides, dilation, groups, uneven padding): a product with its patches.

A matrix holds what each tap of the kernel (row) sees for each pixel of the output (column). It is
made for one sample and one group of channels at a time, forwards and again backwards.
"""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ONCE, ONE, ZERO, descend, fill, settle
from dpfedls.engine.compiled.products import combine_at, dots_at, rows_at
from dpfedls.engine.jit import jit


def patch_convolution(sizes, options, weights, x, y, kept, work):
    """``y = W · patches + b``, for each sample and group."""
    channels, height, width, outputs, groups = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    area, rows = sizes[13] * sizes[14], channels // groups * sizes[5] * sizes[6]
    own, each, inputs = settle(weights), outputs // groups, channels // groups * height * width
    bias, patches = own[outputs * rows :], work.scratch[: rows * area]
    rows_at(work.starts, rows, area)
    for s in range(len(x) // (channels * height * width)):
        for g in range(groups):
            _gather(x[(s * groups + g) * inputs :], patches, sizes)
            out = y[(s * groups + g) * each * area :]
            for o in range(each):
                shift = bias[g * each + o] if len(bias) else ZERO
                fill(out[o * area : (o + 1) * area], shift)
            kernels = own[g * each * rows :]
            combine_at(
                work.combine, kernels, rows, ONCE, each, patches, work.starts, rows, area, out,
                area, ONE,
            )  # fmt: skip


def patch_convolution_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dW = dy · patchesᵀ``, ``db = Σ dy``, and dx is where each of ``Wᵀ dy`` was seen."""
    channels, height, width, outputs, groups = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    area, rows = sizes[13] * sizes[14], channels // groups * sizes[5] * sizes[6]
    own, each, inputs = weights.values, outputs // groups, channels // groups * height * width
    gradient, patches = weights.gradient[: len(own)], work.scratch[: rows * area]
    bias = gradient[outputs * rows :]
    fill(gradient, ZERO)
    fill(d_x, ZERO)
    for s in range(len(x) // (channels * height * width)):
        for g in range(groups):
            at = s * groups + g
            above = d_y[at * each * area : (at + 1) * each * area]
            for o in range(each if len(bias) else 0):
                total = ZERO
                for t in range(o * area, (o + 1) * area):
                    total += above[t]
                bias[g * each + o] += total
            _gather(x[at * inputs :], patches, sizes)
            rows_at(work.starts, rows, area)
            kernels = gradient[g * each * rows :]
            dots_at(work.dots, above, area, each, patches, work.starts, rows, area, kernels, rows)
            if len(d_x):
                rows_at(work.starts, each, area)
                kernels = own[g * each * rows :]
                combine_at(
                    work.combine, kernels, ONCE, rows, rows, above, work.starts, each, area,
                    patches, area, ZERO,
                )  # fmt: skip
                _scatter(patches, d_x[at * inputs :], sizes)
    return descend(weights, 0, gradient)


@jit
def _gather(image, patches, sizes):
    """What each tap sees; zero outside of the image."""
    fill(patches, ZERO)
    _visit(image, patches, sizes, True)


@jit
def _scatter(patches, image, sizes):
    """The transpose of ``_gather``, added to the image."""
    _visit(image, patches, sizes, False)


@jit
def _visit(image, patches, sizes, gather):
    height, width, channels = sizes[1], sizes[2], sizes[0] // sizes[4]
    tall, wide, pad_y, pad_x = sizes[5], sizes[6], sizes[7], sizes[8]
    stride_y, stride_x, apart_y, apart_x = sizes[9], sizes[10], sizes[11], sizes[12]
    down, across = sizes[13], sizes[14]
    row = 0
    for c in range(channels):
        for ky in range(tall):
            for kx in range(wide):
                shift = kx * apart_x - pad_x
                first = max(0, (-shift + stride_x - 1) // stride_x)
                behind = min(across, (width - 1 - shift) // stride_x + 1)
                for j in range(down):
                    at_y = j * stride_y + ky * apart_y - pad_y
                    if 0 <= at_y < height:
                        line = (c * height + at_y) * width + shift
                        at = (row * down + j) * across
                        for i in range(first, behind):
                            if gather:
                                patches[at + i] = image[line + i * stride_x]
                            else:
                                image[line + i * stride_x] += patches[at + i]
                row += 1
