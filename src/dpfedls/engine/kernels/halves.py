"""float32 as the sum of two bfloat16, by which tensor cores multiply it."""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

from typing import TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

Parts: TypeAlias = tuple[Tensor, ...]
"""What is multiplied: a tensor of bfloat16, or of a float32 one its high and its low half."""

_ELEMENTS = 1024  # per program


@triton.jit
def _split(values, high, low, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    value = tl.load(values + at, mask)
    top = value.to(tl.bfloat16)
    tl.store(high + at, top, mask)
    tl.store(low + at, (value - top.to(tl.float32)).to(tl.bfloat16), mask)


def parts(tensor: Tensor) -> Parts:
    """The tensor, contiguous, in bfloat16; its two halves keep 16 of the 24 bits of a float32."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return (tensor,)
    high, low = (torch.empty_like(tensor, dtype=torch.bfloat16) for _ in range(2))
    _split[(triton.cdiv(tensor.numel(), _ELEMENTS),)](
        tensor, high, low, tensor.numel(), BLOCK=_ELEMENTS
    )
    return high, low
