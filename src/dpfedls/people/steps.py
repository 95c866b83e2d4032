"""How far a client goes: back into the ball after a step, or again with shorter steps."""

from __future__ import annotations

import torch
from torch import Tensor


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


def following(share: Tensor, risen: Tensor, first: Tensor, most: float) -> Tensor:
    """What to multiply a client's gradients by when it trains again; as before where it need not.

    ``risen`` is the mean loss of its batches, each before its step, by the loss of the first. After
    a usual training (share 1) a client need not if that is at most a half, or if its first step is
    at most ``most``. Where inputs have large units a step throws away what the step before it
    learned: the loss stays, and all that is left is projected. Somebody with one sample takes a
    step as long, and has learned it. Where even a short first step makes the next ones longer, as a
    squared loss may, the loss grows fourfold: then again with an eighth of the gradients.
    """
    fine = torch.where(share < 1, risen <= 4, (risen <= 0.5) | (first <= most))
    return torch.where(fine, share, torch.where(share < 1, share / 8, most / first))


def lengths(parts: list[Tensor]) -> Tensor:
    """Each client's length in ℓ2, over all tensors together; one row per client in each."""
    each = [torch.linalg.vector_norm(part.reshape(len(part), -1), dim=1) for part in parts]
    return torch.stack(each).norm(dim=0)
