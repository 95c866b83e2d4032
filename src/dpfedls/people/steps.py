"""How far a client goes: back into the ball after a step, or again with shorter steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dpfedls.local_sgd import LocalSGD


def project(weights: list[Tensor], centre: list[Tensor], radius: float) -> None:
    """Move each client's weights, in place, to the nearest point of the ball around the centre.

    One row per client in each tensor; the distance runs over all tensors together.
    """
    ways = [w - c for w, c in zip(weights, centre, strict=True)]
    inside = radius / lengths(ways)
    if not (inside < 1.0).any():
        return
    for w, c, way in zip(weights, centre, ways, strict=True):
        share = inside.view(-1, *(1,) * c.dim())
        # Not by a share of 1 - inside: of a long way nothing would be left but its rounding.
        # Whoever is inside keeps every bit, so nobody notices where the others are.
        w.copy_(torch.where(share < 1.0, way.mul_(share).add_(c), w))


TRAININGS = 6  # of one client in a round, at most
_GONE = 0.36  # the mean loss of three steps, after whose first nearly nothing is left of it


class Seen(NamedTuple):
    """What a client has seen of its own training; one entry per client."""

    risen: Tensor  # the mean loss of its batches, each before its step, by the loss of the first
    first: Tensor  # how long its first step was
    promised: Tensor  # what that step would take away, by the gradient, in losses of the batch

    @classmethod
    def of(cls, mean: Tensor, began: Tensor, first: Tensor, rate: float) -> Seen:
        """By the mean loss and that of the first batch, each before its step."""
        return cls(mean / began, first, first.square() / (rate * began))


def following(share: Tensor, seen: Seen, local: LocalSGD, radius: float) -> Tensor:
    """What to multiply a client's gradients by when it trains again; as before where it need not.

    Where inputs have large units a step throws away what the step before it learned. After a usual
    training (share 1) a client trains again if its first step is too long, by one of two rules.
    ``retry_step``: it is longer than that share of the clip norm, and the loss has not halved.
    ``overshoot``, which serves a few steps too: it would take away more than so many times the
    loss, if the loss went on falling as it begins to, and the loss is not gone; then it is made to
    take away all of the loss and no more. Somebody with one sample takes a step as long, and has
    learned it. Afterwards steps may still grow, as with a squared loss: the loss grows fourfold,
    and the client trains again with an eighth of the gradients.
    """
    fine, shorter = torch.ones_like(share, dtype=torch.bool), share
    if local.retry_step is not None:
        most = local.retry_step * radius
        fine, shorter = (seen.first <= most) | (seen.risen <= 0.5), most / seen.first
    if local.overshoot is not None:  # a loss of zero promises nothing, and is fine
        fine = ~(seen.promised > local.overshoot) | (seen.risen <= _GONE)
        shorter = 1 / seen.promised
    again = share < 1
    fine = torch.where(again, seen.risen <= 4, fine)
    return torch.where(fine, share, torch.where(again, share / 8, shorter))


def lengths(parts: list[Tensor]) -> Tensor:
    """Each client's length in ℓ2, over all tensors together; one row per client in each."""
    each = [torch.linalg.vector_norm(part.reshape(len(part), -1), dim=1) for part in parts]
    return torch.stack(each).norm(dim=0)
