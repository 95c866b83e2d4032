"""The compiled forms of convolution and pooling, of images and of lines: images of height 1."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from dpfedls.engine.compiled import images, pooling
from dpfedls.engine.compiled.before import Before, with_bias
from dpfedls.engine.compiled.program import Row

_FAST = 1024  # pixels: a sum over so many hides what it costs to end it


def convolution(layer: nn.Conv1d | nn.Conv2d, before: Before) -> list[Row]:
    """Any strides, dilation, groups and padding with zeros."""
    channels, height, width = _image(layer, before)
    if channels != layer.in_channels:
        before.refuse(
            layer, f"takes {layer.in_channels} channels, but is given {before.shape} per sample"
        )
    if layer.padding_mode != "zeros":
        before.refuse(layer, f"has padding_mode {layer.padding_mode!r}; only 'zeros' is compiled")
    outputs, groups = layer.out_channels, layer.groups
    (tall, wide), (apart_y, apart_x), (stride_y, stride_x) = (
        _pair(layer, option) for option in (layer.kernel_size, layer.dilation, layer.stride)
    )
    reach_y, reach_x = apart_y * (tall - 1), apart_x * (wide - 1)
    if layer.padding == "same":  # an odd margin is larger behind the image than before it
        top, left, all_y, all_x = reach_y // 2, reach_x // 2, reach_y, reach_x
    else:
        top, left = (0, 0) if layer.padding == "valid" else _pair(layer, layer.padding, 0)
        all_y, all_x = 2 * top, 2 * left
    free_y, free_x = height + all_y - reach_y, width + all_x - reach_x
    if min(free_y, free_x) < 1:
        before.refuse(layer, f"has kernels larger than its images of {height} × {width}")
    shape = (outputs, (free_y - 1) // stride_y + 1, (free_x - 1) // stride_x + 1)
    kernels = (outputs, channels // groups, *layer.kernel_size)
    place = before.weights(layer, with_bias(layer, kernels))
    down, across = shape[1:]
    if height == tall == down == 1 and not top:  # a line upright: one copy serves all its taps
        height, width, down, across, tall, wide = width, 1, across, 1, wide, 1
        top, left, apart_y, reach_y, stride_y, stride_x = left, 0, apart_x, reach_x, stride_x, 1
    # What an output and its taps see, of one rest of y by the stride.
    lines = down + reach_y // stride_y
    together = min(before.batch, max(1, _FAST // (down * across)))
    sizes = (
        channels, height, width, outputs, groups, tall, wide, top, left, stride_y, stride_x,
        apart_y, apart_x, down, across, lines, together,
    )  # fmt: skip
    each, inside = outputs // groups, channels // groups
    rests = min(stride_y, reach_y + 1)
    # The most pixels of the inputs that have one rest by the strides.
    many_y, many_x = (height - 1) // stride_y + 1, (width - 1) // stride_x + 1
    back = each * wide * (many_y + reach_y // stride_y) * many_x
    return [
        Row(
            images.convolution,
            images.convolution_backward,
            _shape(layer, shape),
            *place,
            sizes,
            scratch=max(
                together * channels * wide * rests * lines * across,
                inside * each * tall * wide + back + inside * many_y * many_x,
            ),
            starts=max(each, inside) * tall * wide,
        )
    ]


def max_pool(layer: nn.MaxPool1d | nn.MaxPool2d, before: Before) -> list[Row]:
    """Any windows and padding."""
    if _pair(layer, layer.dilation) != (1, 1) or layer.ceil_mode or layer.return_indices:
        before.refuse(layer, "has dilation, ceil_mode or return_indices, which are not compiled")
    window = (layer.kernel_size, layer.stride, layer.padding)
    return _pool(layer, before, (pooling.max_pool, pooling.max_pool_backward), window)


def avg_pool(layer: nn.AvgPool1d | nn.AvgPool2d, before: Before) -> list[Row]:
    """Any windows; padding where it counts as zeros."""
    margin = any(_pair(layer, layer.padding, 0)) and not layer.count_include_pad
    if layer.ceil_mode or getattr(layer, "divisor_override", None) or margin:
        before.refuse(
            layer, "has ceil_mode, divisor_override or count_include_pad=False, not compiled"
        )
    window = (layer.kernel_size, layer.stride, layer.padding)
    return _pool(layer, before, (pooling.mean_pool, pooling.mean_pool_backward), window)


def adaptive_avg_pool(
    layer: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d, before: Before
) -> list[Row]:
    """Where all windows have one size, as for an output of 1 × 1."""
    _, height, width = _image(layer, before)
    down, across = _pair(layer, layer.output_size)
    down, across = down or height, across or width
    if height % down or width % across:
        before.refuse(layer, f"has windows of unlike sizes on images of {height} × {width}")
    window = (height // down, width // across)[-_dimensions(layer) :]
    functions = (pooling.mean_pool, pooling.mean_pool_backward)
    return _pool(layer, before, functions, (window, window, 0))


def _pool(
    layer: nn.Module, before: Before, functions: tuple[Any, Any], window: tuple[Any, Any, Any]
) -> list[Row]:
    """Pooling by windows of a size, a stride and a padding."""
    channels, height, width = _image(layer, before)
    (tall, wide), (stride_y, stride_x) = (_pair(layer, option) for option in window[:2])
    pad_y, pad_x = _pair(layer, window[2], 0)
    down, across = (
        (height + 2 * pad_y - tall) // stride_y + 1,
        (width + 2 * pad_x - wide) // stride_x + 1,
    )
    if min(down, across) < 1:
        before.refuse(layer, f"has windows larger than its images of {height} × {width}")
    shape = (channels, down, across)
    sizes = (height, width, tall, wide, stride_y, stride_x, pad_y, pad_x, down, across)
    kept = math.prod(shape) if functions[0] is pooling.max_pool else 0
    return [Row(*functions, _shape(layer, shape), sizes=sizes, kept=kept)]


def _dimensions(layer: nn.Module) -> int:
    """Of an image 2, of a line 1."""
    return 1 if isinstance(layer, _OF_LINES) else 2


_OF_LINES = (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d)


def _image(layer: nn.Module, before: Before) -> tuple[int, int, int]:
    """Channels, height and width before the layer."""
    if len(before.shape) != 1 + _dimensions(layer) or before.order != "samples":
        kind = "images" if _dimensions(layer) == 2 else "lines of numbers"
        before.refuse(layer, f"takes {kind}, but is given {before.shape} per sample")
    channels, *sides = before.shape
    return (channels, sides[0] if len(sides) == 2 else 1, sides[-1])


def _shape(layer: nn.Module, image: tuple[int, int, int]) -> tuple[int, ...]:
    return image if _dimensions(layer) == 2 else (image[0], image[2])


def _pair(layer: nn.Module, value: Any, of_a_line: int = 1) -> tuple[Any, Any]:
    """An option in y and x; in y a line has a kernel, window and stride of 1, and no padding."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * _dimensions(layer)
    return (of_a_line, values[0]) if len(values) == 1 else (values[0], values[1])
