"""The units of the inputs: people may train on standardised columns, whatever they were given in.

Mean and scale come from public samples, or from noisy answers (people.survey). A model whose first
layer is linear in its inputs can take them in: its weights for standardised inputs and those for
inputs as given are one model in two coordinates. Clients train, and noise is added, in the first;
the server keeps, evaluates and hands out the second. The change is linear and public, so it costs
no privacy.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpfedls.parameters import Coordinates, Layout, Vector
from dpfedls.people.samples import as_input

_FIRST = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
LARGE, SMALL = 5.0, 0.2  # the largest column's root mean square, and that of all, if usual
_ALIKE, _MOST = 10.0, 0.9  # columns of one kind: by how much, and how many of them, reach as far
_RARE = 0.25  # of the size of what is not zero: the least scale of a usual column
CONSTANT = 1e-6  # a spread below this share of the column's mean is lost in float32
SEEN = 2000  # test inputs that are looked at


class AsGiven(Coordinates):
    """Inputs as they are."""

    def __call__(self, features: Any) -> Any:
        """The inputs that clients train on."""
        return features

    def to(self, device: torch.device | str) -> AsGiven:
        """The same on another device."""
        return self

    def same(self, other: AsGiven) -> bool:
        """Whether they are equal."""
        return self is other


AS_GIVEN = AsGiven()


@dataclass(frozen=True, eq=False)
class Standardised(AsGiven):
    """(x − mean) ÷ scale, column by column; ``weight`` and ``bias`` are the first layer's names."""

    layout: Layout
    weight: str
    bias: str | None
    mean: Tensor  # like one input, or one number a channel
    scale: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.scale

    def inward(self, params: Vector) -> Vector:
        """By W x + b = (s W) ((x − m) ÷ s) + (b + W m)."""
        changed = params.clone()
        weight, bias = self._first(changed)
        if bias is not None:
            bias += self._of_mean(weight)
        weight *= self._along(weight, self.scale)
        return changed

    def outward(self, step: Vector) -> Vector:
        changed = step.clone()
        weight, bias = self._first(changed)
        weight /= self._along(weight, self.scale)
        if bias is not None:
            bias -= self._of_mean(weight)
        return changed

    def to(self, device: torch.device | str) -> Standardised:
        return replace(self, mean=self.mean.to(device), scale=self.scale.to(device))

    def same(self, other: AsGiven) -> bool:
        both = isinstance(other, Standardised)
        return both and torch.equal(self.mean, other.mean) and torch.equal(self.scale, other.scale)

    def _first(self, vector: Vector) -> tuple[Tensor, Tensor | None]:
        """Views of the first layer's weight and bias."""
        tensors = self.layout.split(vector)
        return tensors[self.weight], None if self.bias is None else tensors[self.bias]

    def _of_mean(self, weight: Tensor) -> Tensor:
        """What the layer, with weights for inputs as given, makes of the mean."""
        made = weight.double() * self._along(weight, self.mean).double()
        return made.flatten(1).sum(dim=1).to(weight.dtype)

    def _along(self, weight: Tensor, values: Tensor) -> Tensor:
        """One value a column or channel, along the weight's axis of inputs."""
        return values.to(weight.device).reshape(1, -1, *[1] * (weight.dim() - 2))


def standardised(model: nn.Module, inputs: Any, always: bool = False) -> Standardised | None:
    """Units by these public inputs; None where the model's first layer cannot take them in.

    Every column has a mean and a scale of its own; but if nearly all reach about as far, they are
    of one kind, pixels say, and have one scale, so that what is rare is not made large. Inputs of a
    usual scale keep it, unless ``always``. A convolution has a scale for each channel, and no
    mean: its borders are zeros.
    """
    units = unmeasured(model, inputs)
    if units is None or len(inputs) < 2:
        return None
    inputs = inputs[:SEEN]
    values = as_input(inputs).cpu().double()
    if units.mean.shape != values.shape[1:]:
        channels = values.transpose(0, 1).flatten(1).T  # one column each
        values = channels.reshape(-1, values.shape[1], *[1] * (values.dim() - 2))
    mean = values.mean(0) if units.bias is not None else torch.zeros_like(values[0])
    usual = is_usual(inputs)
    scale = units.scale if usual and not always else _scale(mean, values - mean)
    if usual and always:  # what is rare is not made large
        there = (values != 0).sum(0).clamp(min=1)
        scale = scale.maximum(_RARE * (values.square().sum(0) / there).sqrt())
    return replace(units, mean=mean.float(), scale=scale.float())


def unmeasured(model: nn.Module, like: Any) -> Standardised | None:
    """For inputs of that shape: means of 0, scales of 1; None where the model cannot take units in.

    Nothing of the inputs is looked at but their shape and type.
    """
    layer = next((kv for kv in model.named_modules() if isinstance(kv[1], _FIRST)), None)
    plain = isinstance(like, Tensor) and like.is_floating_point() and like.dim() > 1
    if layer is None or not plain:
        return None
    (name, first), shape = layer, like.shape[1:]
    dot, linear = f"{name}." if name else "", isinstance(first, nn.Linear)
    mean = torch.zeros(shape if linear else (shape[0], *[1] * (len(shape) - 1)))
    bias = f"{dot}bias" if linear and first.bias is not None else None
    found = Standardised(Layout.of(model), f"{dot}weight", bias, mean, torch.ones_like(mean))
    return found if _takes_in(model, found, like) else None


def is_usual(inputs: Tensor) -> bool:
    """Whether no column is far above 1 and not all together far below, as embeddings may be."""
    largest, typical = extent(as_input(inputs[:SEEN]).cpu().double())
    return largest <= LARGE and typical >= SMALL


def is_within(inputs: Tensor) -> bool:
    """Whether most inputs have no value beyond 1."""
    return bool((inputs[:SEEN].flatten(1).abs().amax(1) <= 1).double().mean() > 0.5)


def extent(values: Tensor) -> tuple[float, float]:
    """The largest root mean square of a column, and that of all values which are not zero.

    Of zeros sparse inputs are full.
    """
    squares, there = values.square().sum(0), (values != 0).sum().clamp(min=1)
    return float((squares / len(values)).max().sqrt()), float((squares.sum() / there).sqrt())


def folded(model: nn.Module, units: AsGiven) -> nn.Module:
    """A copy that does with inputs as given what the model does with those of the units."""
    model = copy.deepcopy(model)
    layout = Layout.of(model)
    layout.write(units.outward(layout.read(model)), model)
    return model


def _scale(mean: Tensor, centred: Tensor) -> Tensor:
    """How far values usually are from the mean, in each column or in all of one kind."""
    # Whether its tails are long or short.
    spread = torch.maximum(1.25 * centred.abs().mean(0), centred.square().mean(0).sqrt() / 3)
    changes = spread > CONSTANT * mean.abs()
    if not changes.any():
        return torch.ones_like(spread)
    reach = centred.abs().amax(0)[changes]
    usual, far = reach.median(), reach.max()
    # A rare pixel reaches 255, too; of most, since some of them are darker wherever they are.
    if far <= _ALIKE * usual and (reach >= usual / _ALIKE).double().mean() >= _MOST:
        return torch.full_like(spread, float(spread.square().mean().sqrt()))
    constant = torch.where(mean == 0, torch.ones_like(mean), mean.abs())
    return torch.where(changes, spread, constant)


@torch.no_grad()
def _takes_in(model: nn.Module, units: Standardised, like: Tensor) -> bool:
    """Whether, in made-up units, the folded model does what the model does: tried, not guessed."""
    if not {units.weight, units.bias or units.weight} <= set(units.layout.names):
        return False  # frozen
    rng = torch.Generator().manual_seed(0)
    mean, scale = (torch.rand(units.mean.shape, generator=rng) for _ in range(2))
    mean = mean if units.bias is not None else torch.zeros_like(mean)
    units = replace(units, mean=mean, scale=0.5 + scale)
    inputs, model = torch.randn((4, *like.shape[1:]), generator=rng), copy.deepcopy(model).cpu()
    for weights in model.parameters():  # zeros, with which some begin, would hide what they do
        spread = 1 / math.sqrt(weights[0].numel()) if weights.dim() > 1 else 1.0
        weights.copy_(spread * torch.randn(weights.shape, generator=rng))
    try:
        asked, answered = model(units(inputs)), folded(model, units)(inputs)
        return isinstance(asked, Tensor) and torch.allclose(asked, answered, rtol=1e-3, atol=1e-4)
    except Exception:  # shapes that do not fit, columns that are looked up
        return False
