"""How much noise a weight may gather: the server rate and the learning rate, from public inputs.

What noise does depends on what it is multiplied with. So the model is asked: with noise of standard
deviation ρ in every weight, how far do its outputs move? The inputs are public: the test samples,
which the server holds anyway, or random ones. docs/results/rules.md has the measurements.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpfedls.auto.exponential import is_exponential
from dpfedls.auto.links import link_of
from dpfedls.people.calling import call_with
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import Samples, as_input, each
from dpfedls.people.units import LARGE, SMALL

USUAL, MOST, MOST_ALIKE = 0.08, 0.16, 0.64
"""ρ that suited thirteen tasks, the largest that suited any, and where all inputs move alike."""
MOVED, MOVED_FAR, MOVED_APART = 1.5, 3.0, 0.5
"""Scores that move by less than the first allow a larger ρ; by more than the second, a smaller.
A network whose noise moves the scores of all inputs alike, and apart by less than the third, allows
more than ``MOST``: training corrects what is common to all. Sigmoids do that, and few inputs."""
IN_CLIP_NORMS, IN_CLIP_NORMS_OF_NETWORK = 0.3, 0.6
"""ρ in clip norms, where the outputs have units of their own: the clip norm follows the units."""
LEARNING_RATE, STABLE = 0.05, 0.25
"""The usual one; and the most that it may be, times the curvature of the loss in the weights."""
SQUARED, STABLE_IF_SQUARED = 0.1, 1.0
"""The same two where a loss goes on growing steeper: the usual rate is by its curvature in the
outputs (0.05 for the square of one), and the most is what two layers learn best with."""
GROWN = 1.5
"""The slope is asked for again with weights so many times as large, and divided by this: two layers
have the same then; more of them are steeper, and have shorter steps."""
LOOKED_UP = 4.0
"""So many times the usual one where tokens are looked up: few samples move the row of a token."""


class Rates(NamedTuple):
    """What a model bears."""

    noise: float | None  # that a weight may gather; None where its outputs have units of their own
    learning: float
    exponential: bool = False  # whether the loss has an exponential of the outputs
    network: bool = False  # whether the outputs are known not to be linear in the weights
    linear: bool = False  # or known to be
    convolves: bool = False  # whether weights are used at many positions of an input
    bounded: bool = False  # whether the loss of an output grows no faster far away
    slope: float = 1.0  # of the loss by the outputs, where it is longest; of scores alone


def rates_on(
    model: nn.Module,
    inputs: Any,
    loss: Loss = cross_entropy,
    targets: Tensor | None = None,
    *,
    random: bool = False,
) -> Rates:
    """The usual noise and learning rate, or others where the model's outputs ask for them.

    Inputs that nobody scaled make gradients too long for the usual learning rate, and so does a
    loss that goes on growing steeper, as a squared one does and a classifier's does not. In which
    units other outputs than scores move, prices or degrees, nobody has said. ``random``: inputs are
    made up, and have unit scale where the first layer reads them.
    """
    if random:
        model = _reading_unit_scale(model, inputs)
    moved = _Moved(model, inputs)
    if not moved.known:
        return Rates(None, LEARNING_RATE)
    shape = _CROSS_ENTROPY if loss is cross_entropy else _shape(moved.outputs, loss, targets)
    link = link_of(moved.outputs)
    if link is not None and shape.usual < math.inf:  # a squared error keeps the outputs' own unit
        moved = _Moved(model, inputs, link.scores)
        shape = _shape(moved.outputs, lambda o, t: loss(link.outputs(o), t), targets)
    slope, stable, usual = moved.slope, STABLE, shape.usual
    if usual == math.inf:  # a loss that goes on growing steeper
        slope = max(slope, _Moved(_grown(model), inputs).slope / GROWN)
        usual = SQUARED * math.sqrt(moved.outputs[0].numel()) / shape.bends
        stable = STABLE_IF_SQUARED
    usual *= LOOKED_UP if _tokens(model) else 1.0
    bends = shape.bends * slope**2
    learning = min(usual, stable / bends if bends > 0 else math.inf)
    linear = moved.is_linear
    convolves = any(isinstance(layer, _CONVOLUTIONS) for layer in model.modules())
    # Where more noise was tried and did not lose: embeddings did, and behind a link a linear model
    # is not told from a network.
    alike = not (linear or convolves or link or _tokens(model))
    return Rates(
        noise=_noise(moved, alike) if shape.of_scores else None,
        learning=float(f"{learning:.2g}"),
        exponential=shape.exponential,
        network=not linear,
        linear=linear,
        convolves=convolves,
        bounded=shape.bounded,
        slope=float(f"{LEARNING_RATE / shape.usual:.2g}") if shape.of_scores else 1.0,
    )


class _Shape(NamedTuple):
    """What a loss is as a function of a sample's outputs."""

    bends: float  # by how much its slope changes with each unit of the outputs, over many of them
    usual: float  # the learning rate for slopes as long as its own
    of_scores: bool  # whether it is bounded and flat downhill, or linear: more is never wrong
    exponential: bool = False
    bounded: bool = False  # whether its slopes are no longer far away than here


def _shape(outputs: Tensor, loss: Loss, targets: Tensor | None) -> _Shape:
    """By made-up outputs and targets; real ones may be so large that 200 more is not far."""
    if targets is None:
        return _UNKNOWN
    if is_exponential(outputs, loss, targets):
        return _EXPONENTIAL
    made_up, shape = torch.zeros_like(targets[: len(outputs)]), outputs.shape
    found = _shape_at(made_up, shape, loss, _FAR)
    if found is None:  # flat for a target of 0, as a hinge is, whose targets are -1 and 1
        made_up = torch.ones_like(made_up)
        found = _shape_at(made_up, shape, loss, _FAR)
    if found is _UNKNOWN:  # such as the logarithm of a probability that has become 0
        nearer = _shape_at(made_up, shape, loss, _LESS_FAR)
        found = nearer if nearer is not None and nearer.usual < math.inf else _UNKNOWN
    return _over_classes(found or _UNKNOWN, made_up, shape, loss)


def _over_classes(first: _Shape, zeros: Tensor, outputs_like: torch.Size, loss: Loss) -> _Shape:
    """Of class labels the mean over classes: a loss may count the rare ones many times."""
    labels = zeros.dim() == 1 and not zeros.is_floating_point() and len(outputs_like) == 2
    if not labels or not first.of_scores or bool(zeros.any()):
        return first
    classes = torch.linspace(1, outputs_like[1] - 1, min(outputs_like[1] - 1, _CLASSES)).long()
    found = [_shape_at(zeros + k, outputs_like, loss, _FAR) for k in classes]
    if any(shape is None or not shape.of_scores for shape in found):  # other labels than classes
        return first
    shapes = [first, *(shape for shape in found if shape is not None)]
    steepest = sum(LEARNING_RATE / shape.usual for shape in shapes) / len(shapes)
    bends = max(shape.bends for shape in shapes)
    return first._replace(bends=bends, usual=LEARNING_RATE / steepest)


def _shape_at(
    targets: Tensor, outputs_like: torch.Size, loss: Loss, distance: float
) -> _Shape | None:
    """By the slope here, far away, half as far, and as far downhill; None where all are zero.

    A mean over outputs, or a loss times 1,000, has other slopes, and is the same task: so steps are
    by a slope of length 1, as of one yes or no. One that goes on growing has its curvature instead.
    """
    rng, samples = torch.Generator().manual_seed(2), len(targets)
    shape = (samples, *outputs_like[1:])
    way = torch.randn(shape, generator=rng).sign() * distance
    outputs = torch.randn(shape, generator=rng)

    def slope(outputs: Tensor) -> Tensor:
        outputs = outputs.requires_grad_()
        return torch.autograd.grad(loss(outputs, targets).sum(), outputs)[0]

    def longest(slopes: Tensor) -> float:
        return float(slopes.reshape(samples, -1).norm(dim=1).max())

    try:
        here, half, far = (slope(outputs + share * way) for share in (0.0, 0.5, 1.0))
        downhill = nn.functional.normalize(here.reshape(samples, -1)).view_as(here)
        down = slope(outputs - distance * downhill)
    except Exception:  # made-up targets that a loss of somebody's own does not take
        return _UNKNOWN
    changed = float((far - here).norm())
    summed = changed * math.sqrt(here[0].numel() / samples)  # over the outputs
    most = max(map(longest, (here, half, far)))
    if not math.isfinite(summed):
        return _UNKNOWN
    if most == 0:
        return None
    if changed > 1.5 * float((half - here).norm()):
        return _Shape(summed / distance, math.inf, False)
    # Slopes that stay as they are from here on are still so at the larger distance.
    of_scores = changed == 0 or longest(down) < 0.3 * most
    return _Shape(summed / _FAR, LEARNING_RATE / most, of_scores, bounded=True)


def _noise(moved: _Moved, alike: bool) -> float:
    if moved(USUAL) > MOVED_FAR:
        return _where(moved, MOVED_FAR, USUAL / 1e6, USUAL)
    if moved(USUAL) > MOVED:
        return USUAL
    noise = _where(moved, MOVED, USUAL, MOST)
    if noise == MOST and alike and moved.apart(MOST) < MOVED_APART:
        return _where(moved.apart, MOVED_APART, MOST, MOST_ALIKE)
    return noise


def _tokens(model: nn.Module) -> list[int]:
    """How many each of its layers knows that look tokens up."""
    return [
        layer.num_embeddings
        for layer in model.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    ]


def made_up(model: nn.Module, like: Samples) -> Samples:
    """Random inputs of the shape of these: unit scale, or any token that the model knows.

    Targets are zeros: of a loss only its curvature is asked for.
    """
    rng = torch.Generator().manual_seed(0)
    words = _tokens(model)

    def draw(like: Tensor) -> Tensor:
        shape = (_INPUTS, *like.shape[1:])
        if like.is_floating_point():
            return torch.randn(shape, generator=rng).to(like.dtype)
        return torch.randint(min(words, default=1), shape, generator=rng).to(like.dtype)

    return each(draw, like[0]), like[1].new_zeros(_INPUTS, *like[1].shape[1:])


def _reading_unit_scale(model: nn.Module, inputs: Any) -> nn.Module:
    """A copy whose first layer reads numbers of unit scale, where random inputs give it others.

    A model may scale its inputs itself, as (x − mean) ÷ deviation with constants that it holds. It
    is made for people's inputs, of which nothing is known, and of others it makes huge numbers.
    """
    model, first = copy.deepcopy(model).cpu(), list[tuple[nn.Module, Any]]()
    inputs = each(lambda leaf: as_input(leaf[:_INPUTS]).cpu(), inputs)
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given: first.append((layer, given[0])))
        for layer in layers
    ]
    with torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    layer, read = first[0] if first else (model, None)
    if isinstance(read, Tensor) and read.is_floating_point():
        size = float(read.double().square().mean().sqrt())
        if not SMALL <= size <= LARGE:
            rng = torch.Generator().manual_seed(3)
            made_up = torch.randn(read.shape, generator=rng)
            layer.register_forward_pre_hook(lambda layer, given: (made_up, *given[1:]))
    return model


def _grown(model: nn.Module) -> nn.Module:
    """A copy with larger weights, as training makes them."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for weights in filter(lambda p: p.requires_grad, model.parameters()):
            weights.mul_(GROWN)
    return model


class _Moved:
    """By how much noise of a standard deviation in the weights moves the scores, in the mean."""

    def __init__(
        self, model: nn.Module, inputs: Any, scores: Callable[[Tensor], Tensor] = lambda o: o
    ) -> None:
        self.scores = scores  # of the outputs
        self.model = copy.deepcopy(model).cpu()
        self.inputs = each(lambda leaf: as_input(leaf[:_INPUTS]).cpu(), inputs)
        rng = torch.Generator().manual_seed(1)  # not that of made-up inputs: they would be alike
        self.weights = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        self.noise = [
            {n: torch.randn(w.shape, generator=rng) for n, w in self.weights.items()}
            for _ in range(_DRAWS)
        ]
        tracked = {n: w.clone().requires_grad_() for n, w in self.weights.items()}
        self.outputs = call_with(self.model, tracked, self.inputs)
        self.known = isinstance(self.outputs, Tensor)
        self.still = self._scores(self.weights) if self.known else torch.zeros(2)
        self.unit = max(1.0, float(self.still.std()))  # scores that begin large bear more

    def __call__(self, rho: float) -> float:
        return self._size(self._changes(rho))

    @property
    def slope(self) -> float:
        """How far the outputs move for each unit of noise, where there is little."""
        return self.unit * self(_LITTLE) / _LITTLE

    def apart(self, rho: float) -> float:
        """By how much it moves the scores of one input otherwise than those of all."""
        return self._size([change - change.mean(dim=0) for change in self._changes(rho)])

    def _changes(self, rho: float) -> list[Tensor]:
        moved = ({n: w + rho * z[n] for n, w in self.weights.items()} for z in self.noise)
        return [self._scores(noisy) - self.still for noisy in moved]

    def _size(self, changes: list[Tensor]) -> float:
        return math.sqrt(float(torch.stack(changes).square().mean())) / self.unit

    @property
    def is_linear(self) -> bool:
        """Whether noise twice as large moves the scores twice as far, and again."""
        moved = [self(rho) for rho in (0.5, 1.0, 2.0)]
        return all(math.isclose(2 * a, b, rel_tol=1e-3) for a, b in itertools.pairwise(moved))

    @torch.no_grad()
    def _scores(self, weights: dict[str, Tensor]) -> Tensor:
        scores = self.scores(call_with(self.model, weights, self.inputs))
        if scores.dim() < 2 or scores.shape[1] < 2:
            return scores
        return scores - scores.mean(dim=1, keepdim=True)  # what moves all alike changes nothing


def _where(moved: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The ρ between the two at which scores move by the target, to a few per cent."""
    if moved(high) <= target:
        return high
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if moved(middle) <= target else (low, middle)
    return float(f"{low:.2g}")


_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
_INPUTS, _DRAWS, _LITTLE, _CLASSES = 64, 2, 1e-4, 100
_FAR, _LESS_FAR = 200.0, 20.0
_CROSS_ENTROPY = _Shape(1 / _FAR, LEARNING_RATE, True)  # each slope is between -1 and 1
_UNKNOWN = _Shape(2.0, LEARNING_RATE, False)  # as if it were squared
_EXPONENTIAL = _UNKNOWN._replace(exponential=True)
