"""Local updates by machine code: each thread takes one client after another."""

from __future__ import annotations

import math
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfedls.engine.compiled import NotCompiled
from dpfedls.engine.compiled.program import Program, program_of
from dpfedls.engine.compiled.training import train
from dpfedls.engine.threads import one_torch_thread, usual_threads
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD, Loss, cross_entropy, schedule
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.people.clients import ClientData
from dpfedls.people.samples import as_input
from dpfedls.sampling import Indices


def compiled_update(
    model: nn.Module, loss: Loss, layout: Layout, data: ClientData, local: LocalSGD
) -> CompiledUpdate:
    """The local update as machine code; NotCompiled where something is not known here."""
    if layout.dim == 0 or next(model.parameters()).device.type != "cpu":
        raise NotCompiled("machine code is for a CPU")
    if local.precision != "float32":
        raise NotCompiled(f"machine code has no {local.precision}")
    if loss is not cross_entropy:
        raise NotCompiled("machine code knows the cross-entropy loss only")
    features = getattr(data, "features", None)
    if not isinstance(features, torch.Tensor):
        raise NotCompiled("machine code reads one tensor of features")
    batch = min(local.batch_size, int(data.sizes.max(initial=1)))  # nobody fills a larger one
    program = program_of(model, layout, features, batch)
    if program is None:
        raise NotCompiled("a layer has no machine code")
    return CompiledUpdate(program, data, local)


class CompiledUpdate:
    """Every client alone, so its update is the same to the last bit whoever trains beside it."""

    def __init__(self, program: Program, data: ClientData, local: LocalSGD) -> None:
        self.program, self.data, self.local = program, data, local
        self.targets = as_input(data.targets).contiguous().numpy()
        features = data.features.detach()
        plain = features.dtype == torch.float32 and features.is_contiguous()
        ready = plain and data.order is None and not program.first
        self.ready = features.view(len(features), program.inputs).numpy() if ready else None
        self.threads = usual_threads()
        self.pool = ThreadPoolExecutor(self.threads)
        self.own = threading.local()  # each thread's room to work in

    def __call__(
        self, params: Vector, clients: Indices, round_: int, key: int, radius: float
    ) -> Updates:
        radius = float(radius) if self.local.projection == "step" else math.inf
        order, groups = schedule(self.local, self.data, clients, key)
        every = (rows for group in groups for rows in group)
        waiting = deque(zip(order.tolist(), clients[order].tolist(), every, strict=True))
        updates, rate = params.new_empty(len(clients), len(params)), self.local.rate(round_)
        centre, made = params.numpy(), updates.numpy()

        def work() -> None:
            while True:
                try:
                    place, client, rows = waiting.pop()  # the longest first
                except IndexError:  # none is left
                    return
                made[place] = self._train(centre, client, rows, rate, radius)

        with one_torch_thread():
            others = [self.pool.submit(work) for _ in range(min(self.threads, len(clients)) - 1)]
            try:
                work()
            finally:
                wait(others)
            for other in others:
                other.result()
        return updates

    def _train(
        self, params: np.ndarray, client: int, rows: np.ndarray, rate: float, radius: float
    ) -> np.ndarray:
        centre, weights, *room = self._room(len(params))
        centre[:] = params
        numbers, symbols, targets, rows, start = self._samples(client, rows)
        known = train(
            self.program.table, centre, weights, numbers, symbols, self.program.alphabet, targets,
            rows, start, float(rate), float(1 - rate * self.local.weight_decay), radius, *room,
        )  # fmt: skip
        if not known:
            raise InputError(
                f"client {client} has a label beyond the model's {self.program.classes} outputs, "
                "or a symbol beyond its embedding; relabel, or widen the model"
            )
        return weights

    def _samples(self, client: int, rows: np.ndarray) -> tuple[Any, ...]:
        """Numbers or symbols, labels, and the client's rows among them, counted from a start."""
        if self.ready is not None:
            return self.ready, _NO_SYMBOLS, self.targets, rows, 0
        start, size = int(self.data.starts[client]), int(self.data.sizes[client])
        features, targets = self.data.features[start : start + size], self.targets[start:][:size]
        if rows.size < size:  # prepare no more than are seen; no batch is a short last one then
            seen, places = np.unique(rows - start, return_inverse=True)
            features, targets = features[torch.from_numpy(seen)], targets[seen]
            rows, start, size = places.reshape(rows.shape), 0, len(seen)
        features = as_input(features)
        for layer in self.program.first if size else ():
            features = layer(features)
        samples = features.detach().reshape(size, self.program.inputs).contiguous().numpy()
        both = (_NO_NUMBERS, samples) if self.program.symbols else (samples, _NO_SYMBOLS)
        return *both, targets, rows, start

    def _room(self, dim: int) -> tuple[Any, ...]:
        """Centre, weights, and what ``train`` asks for in its last arguments; a thread's own."""
        if not hasattr(self.own, "room"):
            program, batch = self.program, self.program.batch
            symbols = batch * program.inputs if program.symbols else 0
            self.own.room = _apart(
                ((dim,), np.float32),
                ((dim,), np.float32),
                ((batch * program.values,), np.float32),
                ((2, batch * program.widest), np.float32),
                ((batch * program.places,), np.int64) if program.images else None,
                ((program.most,), np.float32),
                ((program.room,), np.float32),
                ((program.starts,), np.int64),
                ((program.powers,), np.int32) if program.symbols else None,
                ((symbols,), np.int64),
                ((batch,), np.int64),
            )
        return self.own.room


def _apart(*wanted: tuple[tuple[int, ...], type] | None) -> tuple[np.ndarray | None, ...]:
    """Arrays out of one piece of memory, always the same way apart, and far.

    Machine code asks how near two arrays lie before it treats many of their numbers at once, and
    one at a time they may round otherwise: a client's update would depend on where memory was free.
    """
    sizes = [math.prod(w[0]) * np.dtype(w[1]).itemsize if w else 0 for w in wanted]
    starts = np.cumsum([0, *(-(-size // _LINE) * _LINE + _FAR for size in sizes)]).tolist()
    memory = np.empty(starts[-1] + _LINE, np.uint8)
    memory = memory[-memory.ctypes.data % _LINE :]
    return tuple(
        w and memory[at : at + size].view(w[1]).reshape(w[0])
        for w, size, at in zip(wanted, sizes, starts[:-1], strict=True)
    )


# Samples of no width: what a model does not read.
_NO_NUMBERS, _NO_SYMBOLS = np.empty((0, 0), np.float32), np.empty((0, 0), np.int64)
_LINE, _FAR = 64, 4096  # bytes: a cache line, and more than any vectorised loop takes at once
