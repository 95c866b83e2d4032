"""Local updates by machine code: each thread takes one client after another."""

from __future__ import annotations

import math
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.engine.compiled import NotCompiled
from dpfedls.engine.compiled.program import Program
from dpfedls.engine.compiled.recognition import program_of
from dpfedls.engine.compiled.training import TRAIN, Samples, Step, Workspace, train
from dpfedls.engine.jit import callable_from_python
from dpfedls.engine.threads import one_torch_thread, usual_threads
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.people.batches import schedule
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import as_input
from dpfedls.people.steps import TRAININGS, Seen, following
from dpfedls.people.units import Standardised
from dpfedls.sampling import Indices


def compiled_update(
    model: nn.Module, loss: Loss, layout: Layout, data: ClientData, local: LocalSGD
) -> CompiledUpdate:
    """The model's local update as machine code; raises NotCompiled with the reason if it has none.

    What decides is public: the model, the settings, and the type and shape of samples.
    """
    if local.precision != "float32":
        raise NotCompiled(f"precision {local.precision!r} has no compiled form, only 'float32'")
    if loss is not cross_entropy:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise NotCompiled(f"the loss {name!r} has no compiled form, only dpfedls's cross_entropy")
    features, targets = (_like(getattr(data, name, None)) for name in ("features", "targets"))
    if features is None or targets is None:
        raise NotCompiled("people's samples are not one tensor of features and one of targets")
    if features.device.type != "cpu" or targets.device.type != "cpu":
        raise NotCompiled(f"people's samples are on {features.device}, not in a CPU's memory")
    if targets.dim() != 1 or targets.is_floating_point():
        raise NotCompiled("targets are not one whole-number label per sample")
    batch = min(local.batch_size, int(data.sizes.max(initial=1)))  # nobody fills a larger one
    program = program_of(model, layout, _model_input(features), batch)
    # By the largest batch of the settings: how many samples somebody has is private.
    if local.batch_size * program.widest >= 2**31:
        raise NotCompiled("a batch may have more numbers in one layer than 32 bits can count")
    return CompiledUpdate(program, data, local)


class CompiledUpdate:
    """Every client alone, so its update is the same to the last bit whoever trains beside it."""

    def __init__(self, program: Program, data: ClientData, local: LocalSGD) -> None:
        self.program, self.data, self.local = program, data, local
        self.layers, self.train = program.layers(), callable_from_python(train, TRAIN)
        self.shared = None if program.first or program.vocabulary else _shared(data, program.inputs)
        self.threads = usual_threads()
        self.pool = ThreadPoolExecutor(self.threads)
        self.own = threading.local()  # each thread's workspace

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
        every = (batches for group in groups for batches in group)
        waiting = deque(zip(order.tolist(), clients[order].tolist(), every, strict=True))
        updates = params.new_empty(len(clients), len(params))
        rate = pace * self.local.rate(round_)
        centre, made = params.numpy(), updates.numpy()
        keep = np.float32(1 - rate * self.local.weight_decay)
        bound = float(radius) if self.local.projection == "step" else math.inf
        step = Step(np.float32(rate), keep, bound)

        def work() -> None:
            space = self._workspace(len(params))
            space.centre[:] = centre
            while True:
                try:
                    place, client, batches = waiting.pop()  # the longest first
                except IndexError:  # none is left
                    return
                self._train(client, batches, step, space, radius)
                made[place] = space.moved

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
        self, client: int, batches: np.ndarray, step: Step, space: Workspace, radius: float
    ) -> None:
        """Leave the client's update in the workspace; again while steps are too long for it."""
        samples, rate, share = self._samples(client, batches), step.rate, _ALL
        for _ in range(TRAININGS):
            if not self.train(self.layers, samples, step, space):
                raise InputError(
                    f"client {client} has a label beyond the model's {self.program.classes} "
                    "outputs, or a token beyond its embedding; relabel, or widen the model"
                )
            if share is _ALL and self._fine(space.told, float(rate), radius):
                return  # nearly everybody: in no time
            seen = Seen.of(*torch.from_numpy(space.told), rate=float(rate))
            after = following(share, seen, self.local, radius)
            if after == share:
                return
            share, step = after, step._replace(rate=np.float32(rate * float(after)))

    def _fine(self, told: np.ndarray, rate: float, radius: float) -> bool:
        """Whether a usual training needs no other, as ``following`` says it in tensors."""
        retry_step, overshoot, (_, began, first) = self.local.retry_step, self.local.overshoot, told
        if overshoot is not None:
            return first**2 <= overshoot * rate * began
        return retry_step is None or first <= retry_step * radius

    def _samples(self, client: int, batches: np.ndarray) -> Samples:
        """What the client's batches need; places in them count from the start of its samples."""
        batches = np.ascontiguousarray(batches)
        if self.shared is not None:
            return Samples(self.shared[0], _NO_TOKENS, self.shared[1], batches, 0, 0)
        features, targets = self.data.client(client)
        start, vocabulary = int(self.data.starts[client]), self.program.vocabulary
        if batches.size < len(targets):  # prepare only what is seen; no batch is a short one then
            seen, places = np.unique(batches - start, return_inverse=True)
            features, targets = features[torch.from_numpy(seen)], targets[torch.from_numpy(seen)]
            batches, start = places.reshape(batches.shape), 0
        features = _model_input(features)
        for layer in self.program.first if len(targets) else ():
            features = layer(features)
        rows = features.detach().reshape(len(targets), self.program.inputs).contiguous().numpy()
        both = (_NO_FEATURES, rows) if vocabulary else (rows, _NO_TOKENS)
        return Samples(*both, targets.long().contiguous().numpy(), batches, start, vocabulary)

    def _workspace(self, dim: int) -> Workspace:
        """The calling thread's own."""
        if not hasattr(self.own, "space"):
            program, batch = self.program, self.program.batch
            self.own.space = Workspace(
                *_apart(
                    ((dim,), np.float32),
                    ((dim,), np.float32),
                    ((dim,), np.float32),
                    ((batch * program.values,), np.float32),
                    ((batch * program.widest,), np.float32),
                    ((batch * program.widest,), np.float32),
                    ((program.weights,), np.float32),
                    ((program.scratch,), np.float32),
                    ((program.starts,), np.int64),
                    ((batch,), np.int64),
                    ((3,), np.float64),
                )
            )
        return self.own.space


def _like(values: object) -> Tensor | None:
    """A row of zeros like those of a tensor or array; None for anything else."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(np.zeros((1, *values.shape[1:]), values.dtype))
    return torch.zeros_like(values[:1]) if isinstance(values, Tensor) else None


def _model_input(features: Tensor) -> Tensor:
    """What the model reads: floats in single precision, whole numbers as int64."""
    return features.float() if features.is_floating_point() else as_input(features)


def _shared(data: ClientData, inputs: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Everybody's features and labels, where machine code can read a client's rows in place."""
    features = data.features
    if getattr(data, "order", None) is not None or not isinstance(features, Tensor):
        return None
    if isinstance(getattr(data, "units", None), Standardised):
        return None
    if features.dtype != torch.float32 or not features.is_contiguous():
        return None
    targets = torch.as_tensor(data.targets).long().contiguous()
    return features.detach().view(len(features), inputs).numpy(), targets.numpy()


def _apart(*wanted: tuple[tuple[int, ...], type]) -> tuple[np.ndarray, ...]:
    """Arrays in one piece of memory, always at the same distances, and far from each other.

    Machine code looks at the distance between two arrays before it treats many of their numbers at
    once, and one at a time they may round otherwise: a client's update would depend on where
    memory was free, or on how many samples another client has.
    """
    sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in wanted]
    starts = np.cumsum([0, *(-(-size // _LINE) * _LINE + _FAR for size in sizes)]).tolist()
    memory = np.empty(starts[-1] + _LINE, np.uint8)
    memory = memory[-memory.ctypes.data % _LINE :]
    return tuple(
        memory[at : at + size].view(kind).reshape(shape)
        for (shape, kind), size, at in zip(wanted, sizes, starts[:-1], strict=True)
    )


# Samples of no width: what a model does not read.
_ALL = torch.ones(1)  # of the gradients
_NO_FEATURES, _NO_TOKENS = np.empty((0, 0), np.float32), np.empty((0, 0), np.int64)
_LINE, _FAR = 64, 4096  # bytes: a cache line, and more than any vectorised loop takes at once
