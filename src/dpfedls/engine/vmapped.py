"""A block of clients trained at once, each with weights of its own; or on several cores.

``VmappedUpdate`` replaces one operation per client by one batched operation. ``ThreadedUpdate``
divides a block among threads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from dpfedls.engine.batching import CrossEntropy, client_layers
from dpfedls.engine.chains import Chain, chain_of
from dpfedls.engine.replay import Batch, Recorder, Step, one_by_one
from dpfedls.engine.threads import one_torch_thread
from dpfedls.local_sgd import Tree, Update
from dpfedls.parameters import Updates, Vector
from dpfedls.people.batches import schedule
from dpfedls.people.calling import call_with
from dpfedls.people.losses import cross_entropy, require_one_loss_per_sample
from dpfedls.people.precision import to_precision
from dpfedls.people.steps import TRAININGS, Seen, following, lengths, project
from dpfedls.sampling import Indices


class VmappedUpdate(Update):
    """All clients of the block at once: one batched operation where the twin has one per client."""

    def __call__(
        self,
        params: Vector,
        clients: Indices,
        round_: int,
        key: int,
        radius: float,
        pace: float = 1.0,
    ) -> Updates:
        order, groups = schedule(self.local, self.data, clients, key)
        if len({group.shape[2] for group in groups}) > 1:
            wide = np.repeat([g.shape[2] for g in groups], [len(g) for g in groups])
            wide = wide[np.argsort(order)]
            return self._by_width(wide, params, clients, round_, key, radius, pace)
        rate, share = pace * self.local.rate(round_), params.new_ones(len(clients))
        joined, after = self._train(params, groups, rate, radius, share)
        for _ in range(TRAININGS - 1):
            again = (after != share).cpu()
            if not again.any():
                break
            parts = np.split(again.numpy(), np.cumsum([len(group) for group in groups])[:-1])
            some = [group[part] for group, part in zip(groups, parts, strict=True) if part.any()]
            share = after.clone()
            joined[again], after[again] = self._train(params, some, rate, radius, share[again])
        if (order[1:] > order[:-1]).all():  # clients of one size are in order already
            return joined
        places = torch.from_numpy(order).to(params.device)
        return torch.empty_like(joined).index_copy_(0, places, joined)

    def _train(
        self,
        params: Vector,
        groups: list[np.ndarray],
        rate: float,
        radius: float,
        share: Tensor,
    ) -> tuple[Updates, Tensor]:
        """Updates by shares of gradients, in the schedule's order; the shares to train again by."""
        clients, longest = sum(map(len, groups)), max((g.shape[1] for g in groups), default=0)
        rows = [np.concatenate([g[:, s] for g in groups if s < g.shape[1]]) for s in range(longest)]
        centre = list(self.layout.split(params).values())
        weights = [c.expand(clients, *c.shape).clone() for c in centre]
        rounded = [w.to(self.local.dtype) for w in weights]  # what the model computes with
        ball = radius if self.local.projection == "step" else math.inf
        decay = self.local.weight_decay
        began, total, first = (params.new_zeros(clients) for _ in range(3))
        shortened = bool((share != 1).any())

        def step(batch: Tensor, padded: bool, begins: bool = False) -> None:
            # Who has finished rests at the front, and is neither computed nor rounded again.
            busy = slice(clients - len(batch), None)
            training, computing = ([t[busy] for t in part] for part in (weights, rounded))
            gradients, losses = self._gradients(computing, batch, padded)
            if shortened:
                gradients = [g * share[busy].view(-1, *(1,) * (g.dim() - 1)) for g in gradients]
            total[busy] += losses
            if begins:
                began[busy] = losses
                steps = [g + decay * w for g, w in zip(gradients, training, strict=True)]
                first[busy] = rate * lengths(steps)
            descend(training, computing, gradients, centre, rate, decay, ball)

        if rows:  # one copy to the device for all steps
            places = torch.from_numpy(np.concatenate(rows)).to(params.device)
            padded = [bool((batch < 0).any()) for batch in rows]
            batches = list(zip(places.split([*map(len, rows)]), padded, strict=True))
            if self.local.retries:  # measured, so never a replay
                step(*batches.pop(0), begins=True)
            self._run(step, batches)
        updates = [(w - c).reshape(clients, -1) for w, c in zip(weights, centre, strict=True)]
        counts = np.repeat([g.shape[1] for g in groups], [len(g) for g in groups])
        seen = Seen.of(total / torch.from_numpy(counts).to(total), began, first, rate)
        return torch.cat(updates, dim=1), following(share, seen, self.local, radius)

    @cached_property
    def _run(self) -> Callable[[Step, Sequence[Batch]], None]:
        device = next(self.model.parameters()).device
        return Recorder(device).run if device.type == "cuda" else one_by_one

    def _by_width(
        self, widths: np.ndarray, params: Vector, clients: Indices, *public: Any
    ) -> Updates:
        """Batches too large for some clients: those of one width at a time (see batch_width)."""
        updates = params.new_empty(len(clients), len(params))
        for width in np.unique(widths):
            places = np.flatnonzero(widths == width)
            made = self(params, clients[places], *public)
            updates[torch.from_numpy(places).to(params.device)] = made
        return updates

    def _gradients(
        self, weights: list[Tensor], batch: Tensor, padded: bool
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Of each client's mean loss on the samples of its own in the batch; and these losses."""
        features, targets = self.data.take(batch, padded)
        with torch.enable_grad():
            leaves = [w.detach().requires_grad_() for w in weights]
            tensors = dict(zip(self.layout.names, leaves, strict=True))
            losses = self._all_losses(tensors, features, targets)
            if losses.shape != batch.shape:
                require_one_loss_per_sample(losses[0], batch.shape[1])
            # Clients are independent, so the gradient of the sum of their means holds each one's.
            weighed = torch.full_like(losses, 1 / batch.shape[1])
            if padded:
                real = (batch >= 0).to(losses.dtype)
                weighed = real / real.sum(dim=1, keepdim=True)
            gradients = torch.autograd.grad(losses, leaves, weighed, materialize_grads=True)
        return gradients, (losses.detach() * weighed).sum(dim=1)

    def _all_losses(self, tensors: dict[str, Tensor], features: Tree, targets: Tree) -> Tensor:
        """Of all clients; by vmap, unless part of it is known to have a shorter way."""
        chain = self._chain
        if chain is None:
            with client_layers():
                return vmap(self._one_client)(tensors, features, targets)
        outputs = self._outputs(lambda values: chain(tensors, values), features)
        if self.loss is cross_entropy and outputs.dim() == 3 and not targets.is_floating_point():
            return CrossEntropy.apply(outputs, targets)  # pyright: ignore[reportReturnType]
        with client_layers():
            return vmap(self.loss)(outputs, targets)

    def _one_client(self, tensors: dict[str, Tensor], features: Tree, targets: Tree) -> Tensor:
        every = {**self.constants, **tensors}
        outputs = self._outputs(lambda x: call_with(self.model, every, x), features)
        return self.loss(outputs, targets)

    @cached_property
    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers, as copies in the model's precision: the same for all."""
        frozen = {n: p for n, p in self.model.named_parameters() if not p.requires_grad}
        named = frozen | dict(self.model.named_buffers())
        return {
            name: to_precision(t.detach().clone(), self.local.dtype) for name, t in named.items()
        }

    @cached_property
    def _chain(self) -> Chain | None:
        return chain_of(self.model, self.layout)


class ThreadedUpdate:
    """The same on several cores: each thread trains some of the block's clients.

    Threads share work by clients, not inside one operation, so that none waits for another.
    """

    def __init__(self, update: VmappedUpdate, threads: int) -> None:
        # A model under call_with is in one thread's hands: each has modules of its own.
        shared = {id(p): p for p in update.model.parameters()}
        copies = (copy.deepcopy(update.model, dict(shared)) for _ in range(threads))
        self.updates = [replace(update, model=model) for model in copies]
        self.pool = ThreadPoolExecutor(threads)

    def __call__(
        self,
        params: Vector,
        clients: Indices,
        round_: int,
        key: int,
        radius: float,
        pace: float = 1.0,
    ) -> Updates:
        enough = len(clients) * len(params) // _A_THREADS_WORTH
        count = max(1, min(len(self.updates), len(clients), enough))
        parts = [clients[k::count] for k in range(count)]  # sizes lie in order, so parts are alike
        updates = params.new_empty(len(clients), len(params))
        with one_torch_thread():
            made = [
                self.pool.submit(update, params, part, round_, key, radius, pace)
                for update, part in zip(self.updates, parts, strict=False)
            ]
            wait(made)  # all of them: where one failed, each is trained alone, by the same updates
            for k, part in enumerate(made):
                updates[k::count] = part.result()
        return updates


_A_THREADS_WORTH = 2**18  # coordinates; with fewer, threads wait for each other in Python


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
        from dpfedls.engine.kernels import descent

        squares = [descent.descend(w, g, c, rate, keep) for w, g, c, _ in parts]
        inside = (radius / torch.stack(squares).sum(dim=0).sqrt()).clamp(max=1.0)
        for w, _, c, r in parts:
            descent.pull(w, c, inside, r)
        return
    for w, gradient, _, _ in parts:
        (w.mul_(keep) if keep != 1 else w).sub_(gradient, alpha=rate)
    if radius < math.inf:
        project(weights, centre, radius)
    for w, _, _, r in parts:
        if r.dtype != w.dtype:  # otherwise they are the same memory
            r.copy_(w)
