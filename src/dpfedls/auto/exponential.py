"""Whether a loss has an exponential: of a count, a rate or a time whose logarithm is the output.

Most people then have short gradients and a few have gradients many times as long. And where each
person would end alone is the logarithm of their own mean: the mean of those lies below the
logarithm of the mean of all. So the clip norm should be a long one, and trainings short.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpfedls.people.losses import Loss

_FAR, _FACTOR = 20.0, 1000.0
"""From half as far an exponential's slope grows by e¹⁰ = 22,000, that of a tenth power by 512."""


def is_exponential(outputs: Tensor, loss: Loss, targets: Tensor) -> bool:
    """By how its slope grows on made-up outputs; nobody's targets are looked at.

    Targets are zeros and then ones: a time of 0, or a label that multiplies, hides the exponential.
    """
    like = targets[: len(outputs)]
    ways = torch.randn(
        (len(like), *outputs.shape[1:]), generator=torch.Generator().manual_seed(2)
    ).sign()
    return any(
        _grows(loss, made_up, way)
        for made_up in (torch.zeros_like(like), torch.ones_like(like))
        for way in (ways, -ways)  # of one sample either may be downhill
    )


def _grows(loss: Loss, targets: Tensor, ways: Tensor) -> bool:
    def slope(distance: float) -> float:
        outputs = (distance * ways).requires_grad_()
        return float(torch.autograd.grad(loss(outputs, targets).sum(), outputs)[0].norm())

    try:
        half, far = slope(_FAR / 2), slope(_FAR)
    except Exception:  # made-up targets that a loss of somebody's own does not take
        return False
    return 0 < half < math.inf and far > _FACTOR * half
