"""How sure a classifier may be: what people are asked in the last rounds.

Clipped updates make a model too sure: people whom it knows well count as much as those it is wrong
about, whose updates are longer. So in the last rounds everybody in a cohort says how their mean
loss changes if all scores grow, and, where noise is low, if one of them does. Hardly any of these
answers is cut, so their mean is that of everybody. An answer is a vector of norm 1 at most; times
the clip norm, it is clipped, summed and released as an update is, with the same noise, so such a
round costs what every round costs. The model's last layer takes the change in.
``Slopes.answers`` sees what people's samples say; all else here is made from releases, and public.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpfedls.component import Component, check_types
from dpfedls.errors import InputError, require_finite, require_positive
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector
from dpfedls.people.losses import Loss
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.server import ServerState

_STEP = 2.0  # times the slopes of a cross-entropy by its scores: no longer one goes too far
_NOISE_OF_SCALE, _NOISE_OF_SHIFT = 0.4, 0.07  # gathered at most, in log(scale) and in each score
_FURTHEST = math.log(4.0)  # that log(scale) may change in a round
_REACH = 4.0  # of slopes by log(scale) that count: at the end few samples have longer ones


class Rescale(Component, frozen=True, tag=False):
    """In the last rounds people say how all scores should be scaled, and each be shifted."""

    rounds: int  # the last of the plan's
    shift: bool = False  # too; otherwise the order of the scores stays
    slope: float = 1.0  # the unit of the loss's slopes, its longest: of a mean over 20 labels 0.2

    def __post_init__(self) -> None:
        check_types(self, "rescale.")
        require_positive("rescale.rounds", self.rounds, "one at least asks")
        require_finite("rescale.slope", self.slope, "it is the longest slope of the loss")

    def require_room(self, plan: PrivacyPlan, before: int) -> None:
        """Refuse a plan that leaves no round to train in, or bounds no answer."""
        if before + self.rounds >= plan.rounds:
            raise InputError(
                f"rescale.rounds = {self.rounds} and {before} rounds that may ask for units leave "
                f"none of plan.rounds = {plan.rounds} to train; ask in fewer"
            )
        if math.isinf(plan.clipping.start):
            raise InputError(
                "clip_norm = inf bounds no answer, so nobody can be asked; leave rescale out, or "
                "give a finite clip_norm"
            )


@dataclass(frozen=True)
class Slopes:
    """What such a round asks: public, and the same for everybody."""

    scores: int  # that the model gives
    shift: bool
    unit: float  # of the slopes

    @property
    def length(self) -> int:
        """How many numbers an answer has."""
        return 1 + self.scores * self.shift

    @property
    def share(self) -> float:
        """Of an answer's norm that is for the scale, and for usual slopes by the scores."""
        return math.sqrt(0.5) if self.shift else 1.0

    def answers(self, slopes: Tensor) -> Tensor:
        """One answer a row, of norm 1 at most: the slope by log(scale), and that by each score."""
        slopes = slopes.double()[:, : self.length] / self.unit
        by_scale = (slopes[:, :1] / _REACH).clamp(-1, 1)
        by_score = slopes[:, 1:] / math.sqrt(2)  # the most, of a cross-entropy
        said = self.share * torch.cat([by_scale, by_score], dim=1)
        return said / said.norm(dim=1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, eq=False)
class Rescaling:
    """The server's side: what follows from the answers."""

    asks: Rescale
    layout: Layout
    weight: str  # of the last layer
    bias: str
    noise: float  # standard deviation in each number of a round's mean answer

    @property
    def question(self) -> Slopes:
        """What each of the last rounds asks."""
        shape = self.layout.shapes[self.layout.names.index(self.bias)]
        return Slopes(math.prod(shape), self.asks.shift, self.asks.slope)

    def after(self, state: ServerState, release: Release) -> ServerState:
        """The state after a round that asked: the output's scores are scaled and shifted."""
        params = self.rescaled(state.average, release)
        return replace(state, round=state.round + 1, params=params, average=params)

    def rescaled(self, params: Vector, release: Release) -> Vector:
        """A step against the mean slopes, so short that little noise gathers in all the rounds."""
        slopes = release.value.double() / release.clip_norm / self.question.share
        by_scale, by_score = self._sure(slopes[:1]), self._sure(slopes[1:])
        grows = -self._step(_NOISE_OF_SCALE, _REACH) * _REACH * by_scale
        factor = grows.clamp(-_FURTHEST, _FURTHEST).exp()
        changed = params.clone()
        tensors = self.layout.split(changed)  # views
        weight, bias = tensors[self.weight], tensors[self.bias]
        weight *= factor
        bias *= factor
        if self.asks.shift:
            shift = self._step(_NOISE_OF_SHIFT, math.sqrt(2)) * math.sqrt(2) * by_score
            bias -= shift.view_as(bias)
        return changed

    def _sure(self, slopes: Tensor) -> Tensor:
        """Less of them where noise may be all there is (James and Stein's factor)."""
        noise = len(slopes) * (self.noise / self.question.share) ** 2
        return slopes * (1 - noise / slopes.square().sum().clamp(min=1e-30)).clamp(min=0)

    def _step(self, most: float, unit: float) -> float:
        """The usual step, or a shorter one with which all rounds gather no more noise than that."""
        noise = math.sqrt(self.asks.rounds) * unit * self.noise / self.question.share
        return min(_STEP, most / noise) if noise else _STEP


def slopes_of(loss: Loss, outputs: Tensor, targets: Tensor, scores: int) -> Tensor:
    """How the mean loss grows with log(scale) of the scores, and with each of them.

    Whether gradients are on is a switch of the whole process, which somebody's loader may turn.
    """
    with torch.enable_grad():
        given = outputs.detach().clone().requires_grad_()
        mean = loss(given.clone(), targets).float().mean()  # a loss may change what it is given
        if not mean.requires_grad:
            return outputs.new_zeros(1 + scores)
        (slopes,) = torch.autograd.grad(mean, given, materialize_grads=True)
    slopes, flat = slopes.reshape(-1, scores), given.detach().reshape(-1, scores)
    return torch.cat([(slopes * flat).sum()[None], slopes.sum(dim=0)])


@torch.no_grad()
def last_layer(model: nn.Module, like: Any) -> tuple[str, str] | None:
    """Weight and bias of the linear layer whose outputs are the model's: tried, not guessed.

    None where there is no such layer, or it does not train. Of ``like``, somebody's inputs, the
    shape alone is looked at.
    """
    layers = [kv for kv in model.named_modules() if isinstance(kv[1], nn.Linear)]
    if not layers or layers[-1][1].bias is None:
        return None
    dot = f"{layers[-1][0]}." if layers[-1][0] else ""
    names = f"{dot}weight", f"{dot}bias"
    if not {*names} <= {*Layout.of(model).names}:
        return None  # frozen
    if not isinstance(like, Tensor) or not like.is_floating_point():
        return None
    rng = torch.Generator().manual_seed(0)
    model = copy.deepcopy(model).cpu().float()
    weight, bias = (model.get_parameter(name) for name in names)
    for values in (weight, bias):
        values.copy_(torch.randn(values.shape, generator=rng))
    inputs = torch.randn((4, *like.shape[1:]), generator=rng)
    shift = torch.randn(bias.shape, generator=rng)
    try:
        before = model(inputs)
        weight.mul_(0.5)
        bias.mul_(0.5).add_(shift)
        expected = 0.5 * before.view(4, -1) + shift
        found = model(inputs).view(4, -1)
        fits = found.shape == expected.shape and torch.allclose(found, expected, atol=1e-4)
    except Exception:  # shapes that do not fit, outputs that are no tensor
        return None
    return names if fits else None
