"""Whether inputs are in units of their own, by the test inputs, which are public."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from dpfedls.auto.links import link_of
from dpfedls.people.losses import Loss
from dpfedls.people.samples import Samples, as_input, each
from dpfedls.people.units import AS_GIVEN, SEEN, AsGiven, is_usual, standardised

_LEARNED, _TRIED = 0.9, 1000
_FEWEST, _CENTRED = 10, 0.1


class Inputs(NamedTuple):
    """The inputs that clients train on, and why."""

    units: AsGiven
    why: str


def inputs_for(model: nn.Module, test: Samples | None, loss: Loss, centre: bool = False) -> Inputs:
    """Standardised by the test inputs where their units are not usual and the model allows it.

    Inputs of a usual scale stay as given, or are only centred where that is asked for.
    """
    if test is None:
        return _as_given(
            "without test= nobody may know the units of inputs, so let columns be around 1"
        )
    values, targets = each(lambda part: part[:SEEN], test)
    if not isinstance(values, torch.Tensor) or not values.is_floating_point():
        return _as_given("the test inputs are not one tensor of fractions")
    values = as_input(values).cpu()
    found = values.double().square().mean(0).sqrt()
    least, most = (f"{float(size):.2g}" for size in (found.min(), found.max()))
    usual = f"the test inputs have a usual scale, up to {most}"
    why = f"the columns of the test inputs have sizes from {least} to {most}, so people train on "
    why += "columns standardised by these"
    if is_usual(values):
        if not centre or values.double().mean(0).abs().max() < _CENTRED:
            return _as_given(usual)
        why = "the means of the test inputs are not 0, and with so little noise, or targets with "
        why += "units, a network learns better from inputs less these means"
    if len(values) < _FEWEST:
        return _as_given(f"{len(values)} test inputs are too few to tell units by")
    units = standardised(model, values)
    if units is None:
        return _as_given("the model's first layer cannot take units in")
    if not units.mean.any() and (units.scale == 1).all():  # a convolution has no mean
        return _as_given(usual)
    if _has_learned(model, (values, targets), loss):
        return _as_given("the model has learned from such inputs already")
    return Inputs(units, f"true: {why}; the model takes inputs as they are")


def _as_given(why: str) -> Inputs:
    return Inputs(AS_GIVEN, f"false: {why}")


def _has_learned(model: nn.Module, test: Samples, loss: Loss) -> bool:
    """Whether it has much less loss than scores of zero, and than with other samples' targets.

    Scores of any size, with random weights and inputs that nobody scaled, have more than the first;
    a mean that happens to fit has as much as the second.
    """
    device = next(model.parameters()).device
    inputs, targets = (as_input(part[:_TRIED]).to(device) for part in test)
    outputs = model(inputs)
    link, zeros = link_of(outputs), torch.zeros_like(outputs)
    nothing = zeros if link is None else link.outputs(zeros)
    others = targets.roll(len(targets) // 2, 0)
    least = torch.minimum(loss(nothing, targets).mean(), loss(outputs, others).mean())
    return bool(loss(outputs, targets).mean() < _LEARNED * least)
