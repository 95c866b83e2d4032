"""The memory layout of images that the kernels write."""

from __future__ import annotations

import torch
from torch import Tensor


def channels_last(
    like: Tensor, n: int, b: int, c: int, h: int, w: int, dtype: torch.dtype | None = None
) -> Tensor:
    """An empty (n, b, c, h, w) that lies in memory as (n, b, h, w, c), and is not a view."""
    strides = (b * h * w * c, h * w * c, 1, w * c, c)
    return like.new_empty_strided((n, b, c, h, w), strides, dtype=dtype)
