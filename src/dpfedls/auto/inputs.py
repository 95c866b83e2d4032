"""The units of inputs: by the test inputs, which are public, or by what the first rounds ask."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from dpfedls.auto.links import link_of
from dpfedls.people.losses import Loss
from dpfedls.people.samples import Samples, as_input, each
from dpfedls.people.survey import Measured
from dpfedls.people.units import (
    SEEN,
    Standardised,
    is_usual,
    is_within,
    standardised,
    unmeasured,
)
from dpfedls.privacy.plan import PrivacyPlan

_LEARNED = 0.9  # of the loss of scores of zero: a model with less has learned already
_TRIED = 1000  # test samples by which that is told
_FEWEST = 10  # test inputs that tell units
_CENTRED = 0.1  # means that are as good as 0

# What random weights of a first layer look like:
_ALIKE = 10.0  # by how much columns' sizes may differ,
_FEW_UNITS = 8  # or that to the third power with fewer units than this
_ORDER = 1.02  # times as much in one direction as random matrices have
_NUMBERS = 2 * 10**6  # random numbers drawn to see that

# Rounds that may ask people about their inputs, at most, as a share of all:
_FIRST = 0.05  # whether inputs are around 1
_SIZES = 0.2  # how large each column is, or all of them together
MANY = 64  # columns; so many, or more, are mostly of one kind: one scale does,
_SIZES_OF_MANY = 0.05  # unless so few rounds are enough to ask for each
_LATER = 0.05  # each question for means and spreads
_MOST_WITHIN = 0.2  # all of them, where inputs lie within -1 and 1
# The standard deviation of the noise with which an answer is clear:
_CLEAR_FIRST = 0.12  # a share of people
_CLEAR = 0.075  # shares of a column's values
_CLEAR_TOGETHER = 0.025  # shares of all columns' values
_CLEAR_LATER = 0.1  # means and distances

_BEST = "from which a linear model, or one of a table between -1 and 1, learns best"
_HINT, _TAKES = "so let columns be around 1", "the model takes inputs as they are"


class Usual(NamedTuple):
    """What to make of inputs of a usual scale."""

    wish: Literal["keep", "centre", "standardise"]
    within: bool = False  # standardise those that lie within -1 and 1
    at_most: float = 1.0  # of the rounds may ask for the sake of the wish


KEEP = Usual("keep")


class Inputs(NamedTuple):
    """The inputs that clients train on, and why."""

    standardise: bool | Literal["always"]  # as a recipe has it
    why: str


def inputs_for(model: nn.Module, test: Samples, loss: Loss, usually: Usual = KEEP) -> Inputs:
    """Standardised by the test inputs where their units are not usual and the model allows it.

    What becomes of inputs of a usual scale is said: they stay, or lose their means, or more.
    """
    values, targets = each(lambda part: part[:SEEN], test)
    if not isinstance(values, torch.Tensor) or not values.is_floating_point():
        return _as_given("the test inputs are not one floating-point tensor")
    values = as_input(values).cpu()
    found = values.double().square().mean(0).sqrt()
    least, most = (f"{float(size):.2g}" for size in (found.min(), found.max()))
    usual = f"the test inputs have a usual scale, up to {most}"
    why = f"the columns of the test inputs have sizes from {least} to {most}, so people train on "
    why += "columns standardised by these"
    always = usually.wish == "standardise" or (usually.within and is_within(values))
    if always:
        why += f", {_BEST}"
    elif is_usual(values):
        if usually.wish == "keep" or values.double().mean(0).abs().max() < _CENTRED:
            return _as_given(usual)
        why = "the means of the test inputs are not 0, and with so little noise, or targets with "
        why += "units, a network learns better from inputs less these means"
    if len(values) < _FEWEST:
        return _as_given(f"{len(values)} test inputs are too few to tell units by")
    units = standardised(model, values, always)
    if units is None:
        return _as_given("the model's first layer cannot take units in")
    if not units.mean.any() and (units.scale == 1).all():  # a convolution has no mean
        return _as_given(usual)
    if _has_learned(model, (values, targets), loss):
        return _as_given("the model has learned from such inputs already")
    told = "always" if always else "true"
    return Inputs("always" if always else True, f"{told}: {why}; {_TAKES}")


def measuring(
    plan: PrivacyPlan, model: nn.Module, like: Any, usually: Usual
) -> tuple[Measured | None, str]:
    """How many of the first rounds ask for units, by how much noise they have; and why.

    Of ``like``, somebody's inputs, shape and type alone are looked at.
    """
    if not isinstance(like, torch.Tensor) or not like.is_floating_point():
        return None, "false: the inputs are not one floating-point tensor"
    units = unmeasured(model, like)
    if units is None:
        return None, f"false: the model's first layer cannot take units in, {_HINT}"
    if not is_fresh(model, units):
        return None, f"false: the model's first layer seems to have learned already, {_HINT}"
    columns = units.mean.numel()
    first, each, later = _rounds(plan, columns)
    together = _enough(plan, 1, _CLEAR_TOGETHER)
    asks = Measured(first=first, sizes=each, later=later)
    share = asks.most / plan.rounds
    wish = usually.wish if share <= usually.at_most else "keep"
    within = usually.within and share <= _MOST_WITHIN
    if units.bias is None:  # means could not be taken in, and without them scales are no help
        wish, within = "keep", False
    scale = wish == "standardise"
    said = f"rounds at first that ask, with noise, whether inputs are around 1: {first}; "
    then = f"in any case, {_BEST}" if scale else "if not"
    then += ", or if they lie within -1 and 1" if within and not scale else ""
    most = _SIZES_OF_MANY if columns > MANY else _SIZES
    if first <= _FIRST * plan.rounds and each <= most * plan.rounds:
        said += f"{then}, up to {each + 4 * later} more ask for mean and scale of each column"
        centre = wish != "keep"
        asks = replace(asks, centre=centre, scale=scale, within=within)
        if centre and not scale:
            asks = replace(asks, at_once=each > _LATER * plan.rounds)
            alone = 2 * later if asks.at_once else each + later
            said += f"; if so, up to {alone} for the mean alone"
        return asks, f"{said}; {_TAKES}"
    if first <= _FIRST * plan.rounds and together <= _SIZES * plan.rounds:
        said += f"if not, {together} more ask for one scale of all {columns} columns; {_TAKES}"
        return Measured(first=first, sizes=together, columns=False), said
    return None, f"false: there is too much noise to ask for units, {_HINT}"


def _rounds(plan: PrivacyPlan, columns: int) -> tuple[int, int, int]:
    """How many ask whether inputs are usual, for sizes, and each later question, of each column."""
    later = min(_enough(plan, columns, _CLEAR_LATER), int(_LATER * plan.rounds))
    first = _enough(plan, 1, _CLEAR_FIRST)
    return first, _enough(plan, columns, _CLEAR), max(1, later)


def _enough(plan: PrivacyPlan, numbers: int, clear: float) -> int:
    """Rounds until the noise in each of so many numbers has that standard deviation."""
    return max(1, math.ceil(numbers * (plan.answer_noise / clear) ** 2))


def _as_given(why: str) -> Inputs:
    return Inputs(False, f"false: {why}")


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


def is_fresh(model: nn.Module, units: Standardised) -> bool:
    """Whether the first layer's weights look random: of one size in all columns, and of no order.

    Weights for columns of several sizes have several sizes, and learned ones have directions in
    common. Of few units chance may say much.
    """
    weight = dict(model.named_parameters())[units.weight].detach().cpu().double()
    sizes = weight.transpose(0, 1).flatten(1).square().mean(1).sqrt()
    alike = _ALIKE if len(weight) >= _FEW_UNITS else _ALIKE**3
    matrix, rng = weight.flatten(1), torch.Generator().manual_seed(0)
    draws = min(200, max(4, _NUMBERS // matrix.numel()))
    random = max(_order(torch.rand(matrix.shape, generator=rng) - 0.5) for _ in range(draws))
    return bool(sizes.max() <= alike * sizes.min()) and _order(matrix) <= _ORDER * random


def _order(matrix: Tensor) -> float:
    """How much of it lies in one direction."""
    return float(torch.linalg.matrix_norm(matrix, 2) / matrix.norm().clamp(min=1e-30))
