"""The fastest engine that a model, its loss and the machine allow, and the reason."""

from __future__ import annotations

import logging
from functools import partial

from torch import nn

from dpfedls.engine.compiled import NotCompiled
from dpfedls.engine.engine import Engine
from dpfedls.engine.judging import mean_losses, mean_slopes
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.engine.probe import NotVmapped, probe
from dpfedls.engine.threads import usual_threads
from dpfedls.engine.vmapped import ThreadedUpdate, VmappedUpdate
from dpfedls.errors import InputError, require_positive, unknown
from dpfedls.local_sgd import LocalSGD, LocalUpdate
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.lazy import People
from dpfedls.people.losses import Loss, cross_entropy

log = logging.getLogger("dpfedls")
ENGINES = ("compiled", "vmapped", "looped")  # the fastest first


def choose(
    model: nn.Module,
    data: People,
    local: LocalSGD,
    loss: Loss = cross_entropy,
    *,
    engine: str = "auto",
    block_size: int | None = None,
) -> Engine:
    """The engine asked for, or by "auto" the fastest that can train this model.

    On a CPU each client alone as machine code where every layer is known, else many at once by
    vmap, else one after another in plain torch, which trains whatever torch runs; on a GPU many at
    once, or one after another. The choice rests on public things only: the model, the loss, the
    settings, shapes and dtypes, and how made-up samples fare.
    """
    if engine not in ("auto", *ENGINES):
        raise unknown("engine", engine, ("auto", *ENGINES))
    if block_size is not None:
        require_positive("block_size", block_size, "it is how many clients train at once")
    update = VmappedUpdate(model, loss, Layout.of(model), data, local)
    on_gpu = next(model.parameters()).device.type != "cpu"
    auto = ENGINES[1:] if on_gpu else ENGINES
    name, made, reason = _first(auto if engine == "auto" else (engine,), update)
    level = logging.WARNING if (engine, name) == ("auto", "looped") else logging.INFO
    log.log(level, "engine: %s (%s)", name, reason)
    size = block_size or _at_once(name, update.layout.dim, on_gpu)
    # The faster engines train no model that keeps anything: known layers, or seen by the probe.
    losses, slopes = (partial(f, update, name == "looped") for f in (mean_losses, mean_slopes))
    return Engine(name, reason, made, data, size, losses=losses, slopes=slopes)


def _first(names: tuple[str, ...], update: VmappedUpdate) -> tuple[str, LocalUpdate, str]:
    """The first engine that can run, and why none before it."""
    refused: list[str] = []
    for name in names:
        try:
            made = _MAKERS[name](update)
        except (NotCompiled, NotVmapped) as error:
            refused.append(f"not {name}: {error}")
        else:
            return name, made, "; ".join([_WHY[name], *refused])
    raise InputError(
        f"engine = {names[-1]!r} cannot train this model, {'; '.join(refused)}; use engine = "
        "'auto', which finds one that can"
    )


def _compiled(update: VmappedUpdate) -> LocalUpdate:
    # Imported here, since Numba takes a moment to load.
    from dpfedls.engine.compiled.update import compiled_update

    if not isinstance(update.data, ClientData):
        raise NotCompiled("machine code needs everybody's samples in memory, as ClientData")
    return compiled_update(update.model, update.loss, update.layout, update.data, update.local)


def _vmapped(update: VmappedUpdate) -> LocalUpdate:
    probe(update)
    threads = usual_threads()
    on_cpu = next(update.model.parameters()).device.type == "cpu"
    # Torch's default precision is the process's, not a thread's.
    alone = threads == 1 or not on_cpu or update.local.precision != "float32"
    return update if alone else ThreadedUpdate(update, threads)


def _looped(update: VmappedUpdate) -> LocalUpdate:
    return LoopedUpdate(update.model, update.loss, update.layout, update.data, update.local)


_MAKERS = {"compiled": _compiled, "vmapped": _vmapped, "looped": _looped}
_WHY = {
    "compiled": "every layer has machine code",
    "vmapped": "many clients at once",
    "looped": "one client after another in plain torch",
}


def _at_once(name: str, dim: int, on_gpu: bool) -> int:
    """How many clients to train at once."""
    if on_gpu:
        return min(max(1, _ON_GPU // dim), _MOST_AT_ONCE)
    held = max(1, _ON_CPU // dim)
    if name == "compiled":
        held = max(held, _IN_LINE)
    return held * usual_threads()


# Weights of all clients of a block: 4 MiB of float32, that a core's caches hold; 2 GiB of a GPU's.
_ON_CPU, _ON_GPU = 2**20, 2**29
_MOST_AT_ONCE = 65_535  # a GPU's grid has no more rows
_IN_LINE = 2  # clients a thread of a large model: the last of a block leaves other threads idle
