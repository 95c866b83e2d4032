"""The fastest way to train clients that their model, their loss and the machine allow."""

from __future__ import annotations

from functools import partial

from torch import nn

from dpfedls.clients import ClientData
from dpfedls.engine.threads import usual_threads
from dpfedls.engine.vmapped import ThreadedUpdate, VmappedUpdate
from dpfedls.local_sgd import LocalSGD, LocalUpdate, Loss
from dpfedls.parameters import Layout


def fastest_update(
    model: nn.Module,
    loss: Loss,
    layout: Layout,
    data: ClientData,
    local: LocalSGD,
    clip_norm: float,
) -> tuple[LocalUpdate, int]:
    """A local update, and how many clients to give it at once.

    On a GPU many at once by batched operations; on a CPU each alone as machine code where the model
    is a chain of known layers, and else again many at once.
    """
    update = VmappedUpdate(model, loss, layout, data, local, clip_norm)
    if data.targets.device.type != "cpu":
        return update, min(max(1, _ON_GPU // layout.dim), _MOST_AT_ONCE)
    threads, held = usual_threads(), max(1, _ON_CPU // layout.dim)
    if local.precision != "float32":  # torch's default precision is the process's, not a thread's
        return update, held
    from dpfedls.engine.compiled import NotCompiled
    from dpfedls.engine.compiled.update import (
        compiled_update,  # here, since Numba takes a moment to load
    )

    try:
        compiled = compiled_update(model, loss, layout, data, local)
    except NotCompiled:
        return (ThreadedUpdate(update, threads) if threads > 1 else update), threads * held
    return partial(compiled, radius=clip_norm), threads * max(held, _IN_LINE)


# Weights of all clients of a block: 4 MiB of float32, that a core's caches hold; 2 GiB of a GPU's.
_ON_CPU, _ON_GPU = 2**20, 2**29
_MOST_AT_ONCE = 65_535  # a GPU's grid has no more rows
_IN_LINE = 2  # clients a thread of a large model: the last of a block leaves other threads idle
