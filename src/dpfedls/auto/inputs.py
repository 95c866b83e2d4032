"""Whether inputs are in units of their own, by the test inputs, which are public."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from dpfedls.metrics import evaluate
from dpfedls.people.losses import Loss
from dpfedls.people.samples import Samples, as_input, each
from dpfedls.people.units import AS_GIVEN, AsGiven, standardised

LARGE, SMALL = 5.0, 0.2
"""Root mean squares of a column between which inputs are of a usual scale."""
_LEARNED = 0.9  # of the loss of zeros: whoever has less knows these inputs already
_FEWEST, _SEEN = 10, 10_000


class Inputs(NamedTuple):
    """The inputs that clients train on, and why."""

    units: AsGiven
    why: str


def inputs_for(model: nn.Module, test: Samples | None, loss: Loss) -> Inputs:
    """Standardised by the test inputs where their units are not usual and the model allows it."""
    if test is None:
        return _as_given("no test inputs are there to tell their units by")
    values, targets = each(lambda part: part[:_SEEN], test)
    if not isinstance(values, torch.Tensor) or not values.is_floating_point():
        return _as_given("the test inputs are not one tensor of fractions")
    sizes = as_input(values).cpu().double().square().mean(0).sqrt()
    least, most = (f"{float(size):.2g}" for size in (sizes.min(), sizes.max()))
    if SMALL <= sizes.max() <= LARGE:
        return _as_given(f"the test inputs have a usual scale, up to {most}")
    if len(values) < _FEWEST:
        return _as_given(f"{len(values)} test inputs are too few to tell units by")
    units = standardised(model, values)
    if units is None:
        return _as_given("the model's first layer cannot take units in")
    if _has_learned(model, (values, targets), loss):
        return _as_given("the model has learned from such inputs already")
    return Inputs(
        units,
        f"true: the columns of the test inputs have sizes from {least} to {most}, so people train "
        "on columns standardised by these; the model takes inputs as they are",
    )


def _as_given(why: str) -> Inputs:
    return Inputs(AS_GIVEN, f"false: {why}")


def _has_learned(model: nn.Module, test: Samples, loss: Loss) -> bool:
    """Whether its loss on the test samples is well below that of outputs of zero."""
    found = evaluate(model, test, loss, {})["loss"]
    zeros = evaluate(_Zeros(model), test, loss, {})["loss"]
    return found < _LEARNED * zeros


class _Zeros(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(self.model(inputs))
