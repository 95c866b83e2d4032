"""Which convolutions and pools are plain: the ones that fast code of ours computes.

Every engine asks here, with the options of a module or of a call.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def plain_padding(
    kernel: tuple[int, ...],
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    mode: str = "zeros",
) -> tuple[int, int] | None:
    """The padding of a plain 2d convolution with a kernel of shape (…, y, x); None for any other.

    Plain: one group, stride 1, no dilation, as many zeros on either side, and less than a kernel of
    them, so that the gradient of the images is a plain convolution as well.
    """
    usual = (_pair(stride), _pair(dilation), groups, mode) == ((1, 1), (1, 1), 1, "zeros")
    if not usual or padding == "same":
        return None
    y, x = (0, 0) if padding == "valid" else _pair(padding)
    return (y, x) if y < kernel[-2] and x < kernel[-1] else None


def plain_window(
    images: tuple[int, ...],
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> int | None:
    """The side of the windows of a plain 2d pool; None for any other.

    Plain: square windows, side by side, that cover images of this shape (…, height, width) exactly.
    """
    side = _pair(kernel_size)
    usual = (_pair(padding), _pair(dilation)) == ((0, 0), (1, 1)) and not return_indices
    # With ceil_mode nothing changes where windows cover the images exactly.
    if not usual or side[0] != side[1] or _pair(stride or kernel_size) != side:
        return None
    return None if images[-1] % side[0] or images[-2] % side[0] else side[0]


def convolution_options(layer: nn.Conv2d) -> tuple[Any, ...]:
    """What ``plain_padding`` asks for."""
    return layer.stride, layer.padding, layer.dilation, layer.groups, layer.padding_mode


def pool_options(layer: nn.MaxPool2d) -> tuple[Any, ...]:
    """What ``plain_window`` asks for, behind the images."""
    return (
        layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode,
        layer.return_indices,
    )  # fmt: skip


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, tuple | list) else (value, value)  # pyright: ignore[reportReturnType]
