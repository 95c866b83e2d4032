"""What clients do: local SGD from the server's weights, projected onto a ball around them.

``LoopedUpdate`` trains one client after another in plain torch. It is slow and defines what is
correct; the faster engines are held to its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call

from dpfedls.component import Component, check_types
from dpfedls.errors import (
    InputError,
    require_finite,
    require_fraction,
    require_not_negative,
    require_positive,
)
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.population import People
from dpfedls.randomness import shuffled
from dpfedls.sampling import Indices

Loss: TypeAlias = Callable[[Tensor, Tensor], Float[Tensor, "samples"]]
"""``loss(outputs, targets)`` gives one loss a sample."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Float[Tensor, "samples"]:
    """The default loss."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class LocalSGD(Component, frozen=True, tag=False):
    """Mini-batch SGD on one client's samples (ClientUpdate of Algorithm 1).

    Either ``epochs`` passes, shuffled each time, the last short batch used, or exactly ``steps``
    batches. In round t the learning rate is ``learning_rate · decay^t``. With projection "step"
    the local model returns to the ball after every step (the paper's way); with "final" only the
    finished update is clipped. With precision "bfloat16" the model computes in half the bits, much
    faster on a GPU; weights, steps and updates stay in float32.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 10
    learning_rate: float = 0.1
    decay: float = 1.0
    weight_decay: float = 0.0
    projection: Literal["step", "final"] = "step"
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        check_types(self, "local.")
        if (self.epochs is None) == (self.steps is None):
            raise InputError(
                f"local.epochs = {self.epochs} and local.steps = {self.steps}; give exactly one of "
                "them, since each says how long a client trains"
            )
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                require_positive(f"local.{name}", value, "a client must see at least one batch")
        require_finite("local.learning_rate", self.learning_rate, "0.1 is a common start")
        require_fraction("local.decay", self.decay, "1.0 keeps the learning rate")
        require_not_negative("local.weight_decay", self.weight_decay, "0 switches it off")

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's arithmetic."""
        return getattr(torch, self.precision)

    def rate(self, round_: int) -> float:
        """The learning rate of a round."""
        return self.learning_rate * self.decay**round_


def schedule(
    local: LocalSGD, data: People, clients: Indices, key: int
) -> tuple[Indices, list[Int64[np.ndarray, "group steps batch"]]]:
    """Which rows of the data each client sees in each step.

    The first array puts the clients in the order of how long they train. The others hold, for each
    size in that order, the rows of all clients of that size. A last short batch is filled with the
    client's own first row, written ~row and counted with weight 0: a model that cannot take zeros
    can take it, and it is nobody else's.
    A client's rows depend on the key and the client alone, not on who else is in the block, and
    all of them together take no more memory than the samples to be seen.
    """
    sizes, width = data.sizes[clients], local.batch_size
    groups = []
    for size in np.unique(sizes).tolist():
        group = clients[sizes == size]
        per_pass = -(-size // width)  # the last short batch included
        passes = local.epochs or -(-(local.steps or 0) // max(per_pass, 1))
        rows = np.empty((len(group), passes, per_pass * width), dtype=np.int64)
        rows[..., size:] = ~data.starts[group, None, None]
        rows[..., :size] = shuffled(key, group, size, passes)
        rows[..., :size] += data.starts[group, None, None]
        rows = rows.reshape(len(group), passes * per_pass, width)
        groups.append(rows[:, : local.steps])
    return np.argsort(sizes, kind="stable"), groups


@runtime_checkable
class LocalUpdate(Protocol):
    """Train each client of a block from ``params``; one row of updates a client."""

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates: ...


@dataclass(frozen=True)
class Update:
    """The parts of every engine's local update."""

    model: nn.Module
    loss: Loss
    layout: Layout
    data: People
    local: LocalSGD
    clip_norm: float

    def _losses(self, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """One loss a sample, of one client."""
        tensors = {**self._frozen, **tensors}
        return self.loss(self._computed(lambda x: functional_call(self.model, tensors, (x,)), x), y)

    def _computed(self, model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The model's outputs, computed in the precision asked for; what follows is in full."""
        with computing_in(self.local.dtype):
            return model(x.to(self.local.dtype) if x.is_floating_point() else x).float()

    @cached_property
    def _frozen(self) -> dict[str, Tensor]:
        """Parameters that do not train, in the precision of those that do."""
        parameters = self.model.named_parameters()
        return {n: p.to(self.local.dtype) for n, p in parameters if not p.requires_grad}


class LoopedUpdate(Update):
    """One client after another, one real batch after another: no padding, no masks."""

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates:
        order, groups = schedule(self.local, self.data, clients, key)
        updates = torch.zeros(len(clients), self.layout.dim, device=params.device)
        for place, rows in zip(order, (rows for group in groups for rows in group), strict=True):
            updates[place] = self._train(params, rows, self.local.rate(round_)) - params
        return updates

    def _train(self, params: Vector, rows: Int64[np.ndarray, "steps batch"], rate: float) -> Vector:
        weights = params.clone()
        for batch in rows:
            real = torch.from_numpy(batch[batch >= 0]).to(params.device)
            features, targets = self.data.take(real)
            with torch.enable_grad():
                leaf = weights.to(self.local.dtype, copy=True).requires_grad_()
                losses = self._losses(self.layout.split(leaf), features, targets)
                (gradient,) = torch.autograd.grad(losses.mean(), leaf)
            weights = weights - rate * (gradient.float() + self.local.weight_decay * weights)
            if self.local.projection == "step":
                project([weights[None]], [params], self.clip_norm)
        return weights


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """What torch makes of whole numbers that become fractions, and of new tensors."""
    before = torch.get_default_dtype()
    if dtype == before:  # the usual case, and the only one that several threads may share
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def project(weights: list[Tensor], centre: list[Tensor], radius: float) -> None:
    """Move each client's weights, in place, to the nearest point of the ball around the centre.

    One row a client in each tensor; the distance runs over all tensors together.
    """
    lengths = [
        torch.linalg.vector_norm((w - c).reshape(len(w), -1), dim=1)
        for w, c in zip(weights, centre, strict=True)
    ]
    inside = (radius / torch.stack(lengths).norm(dim=0)).clamp(max=1.0)
    for w, c in zip(weights, centre, strict=True):
        share = inside.view(-1, *(1,) * c.dim())
        # Not by a share of 1 - inside: of a long way nothing would be left but its rounding.
        w.copy_(torch.where(share < 1.0, c + share * (w - c), w))
