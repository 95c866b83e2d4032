"""The scores behind a model's probabilities: its last sigmoid or softmax is part of the loss.

A loss on probabilities takes nothing outside 0 to 1, and probabilities hardly move where scores do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class Link(NamedTuple):
    """How outputs follow from scores, and scores from outputs; a softmax has lost their mean."""

    outputs: Callable[[Tensor], Tensor]
    scores: Callable[[Tensor], Tensor]


def link_of(outputs: Tensor) -> Link | None:
    """By the last operation in the autograd graph; those that only move entries are skipped."""
    step, outputs = outputs.grad_fn, outputs.detach()
    while step is not None and step.name().startswith(_MOVES):
        step = step.next_functions[0][0]
    name = "" if step is None else step.name().removesuffix("Backward0")
    if name == "Sigmoid":
        return Link(torch.sigmoid, partial(torch.logit, eps=_LEAST))
    if name == "Softmax":
        softmax = partial(torch.softmax, dim=_adds_up(outputs))
        return Link(softmax, lambda outputs: outputs.clamp(min=_LEAST).log())
    if name == "LogSoftmax":
        return Link(
            partial(torch.log_softmax, dim=_adds_up(outputs.exp())), lambda outputs: outputs
        )
    return None


def _adds_up(probabilities: Tensor) -> int:
    """Along which axis they add up to 1."""
    axes = range(1, probabilities.dim())
    return min(axes, key=lambda axis: float((probabilities.sum(axis) - 1).abs().max()), default=0)


_LEAST = 1e-6
"""Nearer to 0 or 1 single precision does not tell scores apart."""
_MOVES = ("Squeeze", "Unsqueeze", "View", "Unsafe", "Reshape", "Select", "Slice", "Transpose", "T")
