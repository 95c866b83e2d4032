"""Bound what one client can change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dpfedls.parameters import Updates

# A row is scaled by the root of its factor, twice: the factor of a huge row would be subnormal and
# lose its digits. Both products and the root round each coordinate by half a unit in the last
# place; aiming this many units below the bound keeps the rounded row inside it.
_ROUNDING_ROOM = 4.0


def clip(updates: Updates, norm: float) -> Updates:
    """Scale each row down to at most ``norm`` in ℓ2, over all parameters together (Algorithm 1).

    Guarantees: every row of the result has norm ≤ ``norm`` when measured in float64; a row inside
    the ball is unchanged; a row with NaN, an infinity or an overflowing norm becomes zero, so a
    broken client counts as one that sent nothing.
    """
    lengths = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
    target = norm * (1 - _ROUNDING_ROOM * torch.finfo(updates.dtype).eps)
    factors = torch.where(lengths > norm, target / lengths, 1.0)
    roots = factors.sqrt().to(updates.dtype)[:, None]
    # Zero times NaN is NaN, so broken rows are written over, and seldom is there one.
    return (updates * roots).mul_(roots).masked_fill_(~torch.isfinite(lengths)[:, None], 0.0)


@dataclass(frozen=True)
class Bound:
    """How far one client may move a sum: ``norm`` in the update, ``indicator`` / 2 behind it."""

    norm: float
    indicator: float = 0.0


def clipped_sum(updates: Updates, bound: Bound) -> Float[Tensor, "total"]:
    """The sum of the clipped rows in float64; few at a time, so that they stay in the caches.

    Where ``bound.indicator`` > 0 there stands one more coordinate behind the sum, indicator ·
    Σ(1[‖u‖ < norm · (1 − 1e-3)] − ½): how many rows were inside, for adaptive clipping.
    """
    total = updates.new_zeros(updates.shape[1], dtype=torch.float64)
    inside = updates.new_zeros((), dtype=torch.float64)
    for rows in updates.split(max(1, _NEAR // updates.shape[1])):
        total += clip(rows, bound.norm).sum(dim=0, dtype=torch.float64)
        if bound.indicator > 0:
            lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
            inside += (lengths < bound.norm * _INSIDE).double().sub(0.5).sum()
    if bound.indicator > 0:
        return torch.cat([total, bound.indicator * inside[None]])
    return total


_INSIDE = 1 - 1e-3  # what was projected onto the ball lies on it, to rounding
_NEAR = 2**17  # numbers
