"""A step of SGD and the projection onto the ball, in two passes over the weights."""

# pyright: reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: N803 - what is fixed when a kernel is compiled is written in capitals

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _descend(
    weights, gradients, centre, squares, size, blocks, rate, keep, BLOCK: tl.constexpr
):  # fmt: skip
    client, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    place = client * size + at
    w = tl.load(weights + place, mask, other=0.0) * keep
    w -= rate * tl.load(gradients + place, mask, other=0.0).to(tl.float32)
    tl.store(weights + place, w, mask)
    away = tl.where(mask, w - tl.load(centre + at, mask, other=0.0), 0.0)
    tl.store(squares + client * blocks + block, tl.sum(away * away))


def descend(weights: Tensor, gradients: Tensor, centre: Tensor, rate: float, keep: float) -> Tensor:
    """``weights ← keep · weights − rate · gradients``, in place; squared distances to centre."""
    clients, size = len(weights), centre.numel()
    blocks = triton.cdiv(size, 4096)
    squares = weights.new_empty(clients, blocks)
    _descend[(blocks, clients)](
        weights, gradients, centre, squares, size, blocks, rate, keep, BLOCK=4096, num_warps=8
    )
    return squares.sum(dim=1)


@triton.jit
def _pull(weights, centre, inside, rounded, size, BLOCK: tl.constexpr):
    client, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    place = client * size + at
    w, c = tl.load(weights + place, mask), tl.load(centre + at, mask)
    scale = tl.load(inside + client)
    w = tl.where(scale < 1.0, c + scale * (w - c), w)
    tl.store(weights + place, w, mask)
    tl.store(rounded + place, w.to(rounded.dtype.element_ty), mask)


def pull(weights: Tensor, centre: Tensor, inside: Tensor, rounded: Tensor) -> None:
    """Scale each client's distance from the centre, in place; ``rounded`` gets a rounded copy."""
    clients, size = len(weights), centre.numel()
    _pull[(triton.cdiv(size, 4096), clients)](
        weights, centre, inside, rounded, size, BLOCK=4096, num_warps=8
    )
