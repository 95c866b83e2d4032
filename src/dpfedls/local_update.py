"""What clients do: local SGD from the server's weights, projected onto a ball around them.

``VmappedUpdate`` trains a block of clients at once, each with weights of its own, and
``ThreadedUpdate`` does so on several cores. ``LoopedUpdate`` is the slow twin, one client after
another in the plainest torch: it defines what is correct.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dpfedls.batching import CrossEntropy, client_layers
from dpfedls.chains import Chain, chain_of
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
from dpfedls.threads import one_torch_thread

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
    local: LocalSGD, data: ClientData, clients: Indices, key: int
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
class _Update:
    model: nn.Module
    loss: Loss
    layout: Layout
    data: ClientData
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


class VmappedUpdate(_Update):
    """All clients of the block at once: one batched operation where the twin has one a client."""

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates:
        order, groups = schedule(self.local, self.data, clients, key)
        rows = [torch.from_numpy(group).to(params.device) for group in groups]
        short = [[bool((g < 0).any()) for g in group.swapaxes(0, 1)] for group in groups]
        centre = list(self.layout.split(params).values())
        weights = [c.expand(len(clients), *c.shape).clone() for c in centre]
        rounded = [w.to(self.local.dtype) for w in weights]  # what the model computes with
        radius = self.clip_norm if self.local.projection == "step" else math.inf
        for s in range(max((r.shape[1] for r in rows), default=0)):
            # Who has finished rests at the front, and is neither computed nor rounded again.
            batch = torch.cat([r[:, s] for r in rows if s < r.shape[1]])
            padded = any(steps[s] for steps in short if s < len(steps))
            first = len(clients) - len(batch)
            training, computing = ([t[first:] for t in part] for part in (weights, rounded))
            gradients = self._gradients(computing, batch, padded)
            rate = self.local.rate(round_)
            descend(training, computing, gradients, centre, rate, self.local.weight_decay, radius)
        updates = [(w - c).reshape(len(clients), -1) for w, c in zip(weights, centre, strict=True)]
        joined = torch.cat(updates, dim=1)
        if (order[1:] > order[:-1]).all():  # clients of one size are in order already
            return joined
        places = torch.from_numpy(order).to(params.device)
        return torch.empty_like(joined).index_copy_(0, places, joined)

    def _gradients(self, weights: list[Tensor], batch: Tensor, padded: bool) -> tuple[Tensor, ...]:
        """Of each client's mean loss on the samples of its own in the batch."""
        features, targets = self.data.take(batch, padded)
        with torch.enable_grad():
            leaves = [w.detach().requires_grad_() for w in weights]
            tensors = dict(zip(self.layout.names, leaves, strict=True))
            losses = self._all_losses(tensors, features, targets)
            if losses.shape != batch.shape:
                raise InputError(
                    f"loss gave a tensor of shape {tuple(losses.shape[1:])} for a batch of "
                    f"{batch.shape[1]}; it must give one loss a sample, or clients would mix: "
                    "use reduction='none'"
                )
            # Clients are independent, so the gradient of the sum of their means holds each one's.
            shares = torch.full_like(losses, 1 / batch.shape[1])
            if padded:
                real = (batch >= 0).to(losses.dtype)
                shares = real / real.sum(dim=1, keepdim=True)
            return torch.autograd.grad(losses, leaves, shares, materialize_grads=True)

    def _all_losses(self, tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Of all clients; by vmap, unless all of it is known to have a shorter way."""
        chain = self._chain
        if chain is None or self.loss is not cross_entropy:
            with client_layers():
                return vmap(self._losses)(tensors, x, y)
        outputs = self._computed(lambda x: chain(tensors, x), x)
        return CrossEntropy.apply(outputs, y)  # pyright: ignore[reportReturnType]

    @cached_property
    def _chain(self) -> Chain | None:
        return chain_of(self.model, self.layout)


class ThreadedUpdate:
    """The same on several cores: each thread trains some of the block's clients.

    Threads share work by clients, not inside one operation, so that none waits for another.
    """

    def __init__(self, update: VmappedUpdate, threads: int) -> None:
        # A model under functional_call is in one thread's hands: each has modules of its own.
        shared = {id(p): p for p in update.model.parameters()}
        copies = (copy.deepcopy(update.model, dict(shared)) for _ in range(threads))
        self.updates = [replace(update, model=model) for model in copies]
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self, params: Vector, clients: Indices, round_: int, key: int) -> Updates:
        enough = len(clients) * len(params) // _A_THREADS_WORTH
        count = max(1, min(len(self.updates), len(clients), enough))
        parts = [clients[k::count] for k in range(count)]  # sizes lie in order, so parts are alike
        updates = params.new_empty(len(clients), len(params))
        with one_torch_thread():
            made = self.pool.map(
                lambda update, part: update(params, part, round_, key), self.updates[:count], parts
            )
            for k, part in enumerate(made):
                updates[k::count] = part
        return updates


_A_THREADS_WORTH = 2**18  # coordinates; with fewer, threads wait for each other in Python


class LoopedUpdate(_Update):
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


def descend(
    weights: list[Tensor],
    rounded: list[Tensor],
    gradients: Sequence[Tensor],
    centre: list[Tensor],
    rate: float,
    weight_decay: float,
    radius: float,
) -> None:
    """One step of SGD and the way back into the ball, in place; ``rounded`` follows ``weights``."""
    gradients, centre = [g.contiguous() for g in gradients], [c.contiguous() for c in centre]
    parts = list(zip(weights, gradients, centre, rounded, strict=True))
    keep = 1 - rate * weight_decay
    if weights[0].is_cuda:
        from dpfedls.kernels import descent

        squares = [descent.descend(w, g, c, rate, keep) for w, g, c, _ in parts]
        inside = (radius / torch.stack(squares).sum(dim=0).sqrt()).clamp(max=1.0)
        for w, _, c, r in parts:
            descent.pull(w, c, inside, r)
        return
    for w, gradient, _, _ in parts:
        w.mul_(keep).sub_(gradient, alpha=rate)
    if radius < math.inf:
        project(weights, centre, radius)
    for w, _, _, r in parts:
        if r.dtype != w.dtype:  # otherwise they are the same memory
            r.copy_(w)


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
