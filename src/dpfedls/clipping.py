"""Bound what one client can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpfedls.parameters import Total, Updates, Vector


@dataclass(frozen=True)
class Bound:
    """What a round asks of each client, and how much it may count: public, the same for everybody.

    With an indicator one more coordinate, of that weight, holds a yes or no: whether the update is
    inside the ball, or, where there is an earlier model, whether this one has less loss. With a
    question (people.survey) clients send their answers to it, and no update.
    """

    norm: float  # of the clipped update, in ℓ2
    indicator: float = 0.0
    quantile: float = 0.5  # the share of updates that should be inside; the indicator's centre
    earlier: Vector | None = None
    pace: float = 1.0  # times the learning rate
    asked: int = 0  # earlier rounds with a question, in which the learning rate did not decay
    question: Any = None


def clip(updates: Updates, norm: float) -> Updates:
    """Scale each row down to at most ``norm`` in ℓ2, over all parameters together (Algorithm 1).

    Guarantees: every row of the result has norm ≤ ``norm`` when measured in float64; a row inside
    the ball is unchanged; a row with NaN, an infinity or an overflowing norm becomes zero, so a
    broken client counts as one that sent nothing.
    """
    lengths, room = _lengths(updates), _ROUNDING_ROOM * torch.finfo(updates.dtype).eps
    factors = torch.where(lengths > norm, norm * (1 - room) / lengths, 1.0)
    roots = factors.sqrt().to(updates.dtype)[:, None]
    clipped, broken = (updates * roots).mul_(roots), ~torch.isfinite(lengths)
    return clipped.masked_fill_(broken[:, None], 0.0) if broken.any() else clipped  # 0 · NaN is NaN


def clipped_sum(updates: Updates, bound: Bound, better: Tensor | None = None) -> Total:
    """The sum of the clipped rows in float64; few at a time, so that a CPU's caches hold them.

    With an indicator one coordinate follows: indicator · Σ(1[yes] − quantile) over rows that are
    not zero. Yes is what ``better`` says; without it, that a row is inside the ball, a thousandth
    below the norm, since projection ends on the sphere.
    """
    dim = updates.shape[1]
    total = updates.new_zeros(dim + (bound.indicator > 0), dtype=torch.float64)
    few = max(1, (_ON_GPU if updates.is_cuda else _NEAR) // dim)
    for at, rows in enumerate(updates.split(few)):
        clipped = clip(rows, bound.norm)
        total[:dim] += clipped[0] if len(rows) == 1 else clipped.sum(dim=0, dtype=torch.float64)
        if bound.indicator > 0:
            yes = _lengths(rows) < bound.norm * (1 - _ON_THE_SPHERE)
            yes = yes if better is None else better[few * at :][: len(rows)]
            votes = yes.double() - bound.quantile
            total[dim] += bound.indicator * votes[rows.any(dim=1)].sum()
    return total


def _lengths(updates: Updates) -> Tensor:
    return torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)


# A row is scaled by the root of its factor, twice: the factor of a huge row would be subnormal and
# lose its digits. Both products and the root round each coordinate by half a unit in the last
# place; aiming this many units below the bound keeps the rounded row inside it.
_ROUNDING_ROOM = 4.0
_ON_THE_SPHERE, _NEAR, _ON_GPU = 1e-3, 2**17, 2**26  # of the norm; numbers, and on a GPU
