"""How much noise a weight may gather: the server rate and the learning rate, from public inputs.

What noise does depends on what it is multiplied with. So the model is asked: with noise of standard
deviation ρ in every weight, how far do its outputs move? The inputs are nobody's: the test samples,
which the server holds anyway, or random ones. docs/results/beyond.md has the measurements.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import each, leaves

USUAL, MOST = 0.08, 0.16
"""ρ that suited thirteen tasks, and the largest that suited any of them."""
MOVED, MOVED_FAR = 1.5, 3.0
"""Scores that move by less than the first allow a larger ρ; by more than the second, a smaller."""
LEARNING_RATE = 0.05


def noise_for(model: nn.Module, inputs: Any, loss: Loss = cross_entropy) -> float:
    """The noise that each weight of a classifier may gather; the usual one for any other model."""
    if loss is not cross_entropy:
        return USUAL  # in which units its outputs move is not known
    moved = _Moved(model, inputs)
    if moved(USUAL) > MOVED_FAR:
        return _where(moved, MOVED_FAR, USUAL / 1e6, USUAL)
    return USUAL if moved(USUAL) > MOVED else _where(moved, MOVED, USUAL, MOST)


def learning_rate_for(inputs: Any) -> float:
    """0.05, and less where inputs are longer than unit scale: their gradients are, twice over."""
    floats = [leaf.float() for leaf in leaves(inputs) if leaf.is_floating_point()]
    scale = max((float(leaf.square().mean()) for leaf in floats), default=1.0)
    return float(f"{LEARNING_RATE / max(1.0, scale):.2g}")


def made_up(model: nn.Module, features: Any) -> Any:
    """Random inputs of the shape of these: unit scale, or any token that the model knows."""
    rng = torch.Generator().manual_seed(0)
    words = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]

    def draw(like: Tensor) -> Tensor:
        shape = (_INPUTS, *like.shape[1:])
        if like.is_floating_point():
            return torch.randn(shape, generator=rng).to(like.dtype)
        return torch.randint(min(words, default=1), shape, generator=rng).to(like.dtype)

    return each(draw, features)


class _Moved:
    """By how much noise of a standard deviation in the weights moves the scores, in the mean."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model = copy.deepcopy(model).cpu()
        self.inputs = each(lambda leaf: leaf[:_INPUTS].cpu(), inputs)
        rng = torch.Generator().manual_seed(1)  # not that of made-up inputs: they would be alike
        self.weights = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        self.noise = [
            {n: torch.randn(w.shape, generator=rng) for n, w in self.weights.items()}
            for _ in range(_DRAWS)
        ]
        self.still = self._scores(self.weights)
        self.unit = max(1.0, float(self.still.std()))  # scores that begin large bear more

    def __call__(self, rho: float) -> float:
        squares = []
        for noise in self.noise:
            noisy = {n: w + rho * noise[n] for n, w in self.weights.items()}
            squares.append((self._scores(noisy) - self.still).square().mean())
        return math.sqrt(float(torch.stack(squares).mean())) / self.unit

    @torch.no_grad()
    def _scores(self, weights: dict[str, Tensor]) -> Tensor:
        scores = functional_call(self.model, weights, (self.inputs,))
        classes = 1 if scores.dim() > 1 else 0  # what moves all classes alike changes nothing
        return scores - scores.mean(dim=classes, keepdim=True)


def _where(moved: _Moved, target: float, low: float, high: float) -> float:
    """The ρ between the two at which scores move by the target, to a few per cent."""
    if moved(high) <= target:
        return high
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if moved(middle) <= target else (low, middle)
    return float(f"{low:.2g}")


_INPUTS, _DRAWS = 64, 2
