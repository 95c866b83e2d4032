"""What clients do: local SGD from the server's weights, projected onto a ball around them.

``VmappedUpdate`` trains a block of clients at once, each with weights of its own. ``LoopedUpdate``
is its slow twin, one client after another in the plainest torch: it defines what is correct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dpfedls.clients import ClientData
from dpfedls.component import Component, check_types
from dpfedls.errors import (
    InputError,
    require_finite,
    require_fraction,
    require_not_negative,
    require_positive,
)
from dpfedls.parameters import Layout, Updates, Vector
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
    finished update is clipped.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 10
    learning_rate: float = 0.1
    decay: float = 1.0
    weight_decay: float = 0.0
    projection: Literal["step", "final"] = "step"

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

    def rate(self, round_: int) -> float:
        """The learning rate of a round."""
        return self.learning_rate * self.decay**round_


def schedule(
    local: LocalSGD, data: ClientData, clients: Indices, key: int
) -> Int64[np.ndarray, "clients steps batch"]:
    """Rows of the data that each client sees in each step; −1 where it has nothing (more) to see.

    A client's rows depend on the key and the client alone, not on who else is in the block.
    """
    sizes, width = data.sizes[clients], local.batch_size
    batches = -(-sizes // width)  # a pass, the last short batch included
    steps = local.steps or int(batches.max(initial=0)) * (local.epochs or 0)
    rows = np.full((len(clients), steps, width), -1, dtype=np.int64)
    for size in np.unique(sizes[sizes > 0]).tolist():  # clients of one size are shuffled together
        group = np.flatnonzero(sizes == size)
        per_pass = -(-size // width)
        passes = local.epochs or -(-steps // per_pass)
        order = np.full((len(group), passes, per_pass * width), -1, dtype=np.int64)
        order[..., :size] = shuffled(key, clients[group], size, passes)
        order[..., :size] += data.starts[clients[group], None, None]
        order = order.reshape(len(group), passes * per_pass, width)[:, :steps]
        rows[group, : order.shape[1]] = order
    return rows


@runtime_checkable
class LocalUpdate(Protocol):
    """Train each client of a block from ``params``; one row of updates a client."""

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates: ...


@dataclass(frozen=True)
class _Update:
    model: nn.Module
    loss: Loss
    layout: Layout
    data: ClientData
    local: LocalSGD
    clip_norm: float


class VmappedUpdate(_Update):
    """All clients of the block at once: one batched operation where the twin has one a client."""

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates:
        rows = torch.from_numpy(schedule(self.local, self.data, clients, key)).to(params.device)
        rate = self.local.rate(round_)
        weights = params.expand(len(clients), -1).clone()
        losses_of = vmap(self._losses)
        for batch in rows.unbind(dim=1):
            real = batch >= 0
            active = real.any(dim=1, keepdim=True)
            features, targets = self.data.take(batch)
            with torch.enable_grad():
                tensors = {
                    name: tensor.detach().requires_grad_()
                    for name, tensor in self.layout.split(weights).items()
                }
                losses = losses_of(tensors, features, targets)
                if losses.shape != real.shape:
                    raise InputError(
                        f"loss gave a tensor of shape {tuple(losses.shape[1:])} for a batch of "
                        f"{real.shape[1]}; it must give one loss a sample, or clients would mix: "
                        "use reduction='none'"
                    )
                # Clients are independent, so the gradient of the sum holds each one's own.
                mean = losses.where(real, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1)
                gradients = torch.autograd.grad(
                    mean.sum(), list(tensors.values()), materialize_grads=True
                )
            step = torch.cat([g.reshape(len(clients), -1) for g in gradients], dim=1)
            if self.local.weight_decay:
                step.add_(weights, alpha=self.local.weight_decay)
            weights.sub_(step.mul_(active), alpha=rate)  # a client that has finished rests
            if self.local.projection == "step":
                project(weights, params, self.clip_norm, active)
        return weights.sub_(params)

    def _losses(self, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(functional_call(self.model, tensors, (x,)), y)


class LoopedUpdate(_Update):
    """One client after another, one real batch after another: no padding, no masks."""

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates:
        rate = self.local.rate(round_)
        updates = torch.zeros(len(clients), self.layout.dim, device=params.device)
        for update, rows in zip(
            updates, schedule(self.local, self.data, clients, key), strict=True
        ):
            weights = params.clone()
            for batch in rows:
                batch = torch.from_numpy(batch[batch >= 0]).to(params.device)
                if len(batch) == 0:
                    continue
                features, targets = self.data.take(batch)
                with torch.enable_grad():
                    leaf = weights.detach().requires_grad_()
                    outputs = functional_call(self.model, self.layout.split(leaf), (features,))
                    (gradient,) = torch.autograd.grad(self.loss(outputs, targets).mean(), leaf)
                weights = weights - rate * (gradient + self.local.weight_decay * weights)
                if self.local.projection == "step":
                    weights = project(weights[None], params, self.clip_norm)[0]
            update.copy_(weights - params)
        return updates


def project(
    weights: Updates, centre: Vector, radius: float, active: Bool[Tensor, "clients 1"] | None = None
) -> Updates:
    """Move each active row, in place, to the nearest point of the ball around ``centre``.

    A row that rests keeps every bit: projected again it could round otherwise, and then a client's
    update would depend, if only by rounding, on who else is in the block.
    """
    distance = torch.linalg.vector_norm(weights - centre, dim=1, keepdim=True)
    inside = (radius / distance).clamp(max=1.0)
    if active is not None:
        inside = inside.where(active, 1.0)
    return weights.lerp_(centre, 1.0 - inside)
