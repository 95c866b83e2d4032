"""Local steps as CUDA graphs: recorded once a round and replayed for every batch of that shape.

A step of a small model is a hundred launches from Python, and each takes longer than its kernel. A
graph launches them all at once: the same kernels on the same numbers. Within a round the learning
rate, the radius and the memory of the weights are the same for every step, so a graph serves one
round: the next has a cohort of another size.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from dpfedls.engine.engine import first_line

Batch: TypeAlias = tuple[Tensor, bool]
"""Which samples, one row a client, and whether some rows are padded."""
Step: TypeAlias = Callable[[Tensor, bool], None]


def one_by_one(step: Step, batches: Sequence[Batch]) -> None:
    """Each batch in its turn."""
    for batch, padded in batches:
        step(batch, padded)


class Recorder:  # pragma: no cover - GPU, tests/engine/test_kernels.py
    """Runs the steps of a round on a GPU; by a graph where the card waits for launches.

    Where the card is busy all the time a graph would bring nothing but a second set of buffers.
    Recording runs nothing. If it fails nothing has changed: one warning, and every step runs as it
    would have without. What is timed here decides how steps are launched, and no number of theirs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.last: torch.cuda.CUDAGraph | None = None  # a pool lives as long as one of its graphs
        self.compiled = self.failed = False
        self.worth = 3.0  # replays that pay for a recording: a guess until one was timed
        self.untimed: tuple[float, float] | None = None  # seconds of the step and of its recording

    def run(self, step: Step, batches: Sequence[Batch]) -> None:
        """Each batch in its turn."""
        left = Counter(map(_kind, batches))
        graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, Tensor] | None] = {}
        for batch, padded in batches:
            kind = _kind((batch, padded))
            left[kind] -= 1
            if (kept := graphs.get(kind)) is not None:
                kept[1].copy_(batch)
                self._replay(kept[0])
            elif kind in graphs or left[kind] < self.worth or self.failed:
                step(batch, padded)
            elif not self.compiled:  # the first step of all compiles, and takes long for that
                step(batch, padded)
                self.compiled = True
            else:
                # As many clients as before never train again once one has finished.
                graphs = {k: kept for k, kept in graphs.items() if k[0] == len(batch)}
                launched, finished = _timed(partial(step, batch, padded), self.device)
                graphs[kind] = None
                if finished < 1.25 * launched:  # the card kept pace with Python
                    began = time.perf_counter()
                    graphs[kind] = self._recorded(step, batch.clone(), padded)
                    self.untimed = finished, time.perf_counter() - began

    def _replay(self, graph: torch.cuda.CUDAGraph) -> None:
        if self.untimed is None:
            graph.replay()
            return
        (step, recording), self.untimed = self.untimed, None
        saved = step - _timed(graph.replay, self.device)[1]
        # At most 64, so that something else that held the machine up is not believed for ever.
        self.worth = recording / max(saved, recording / 64)

    def _recorded(
        self, step: Step, place: Tensor, padded: bool
    ) -> tuple[torch.cuda.CUDAGraph, Tensor] | None:
        """A graph of the step, and where it finds its batch."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Not torch.cuda.graph, which first gives all cached memory back.
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self.pool)
                try:
                    step(place, padded)
                finally:
                    graph.capture_end()
        except Exception as error:
            self.failed = True
            warnings.warn(  # which a deployed run silences: what fits follows who was drawn
                f"steps cannot be replayed as a CUDA graph ({first_line(error)}); they are "
                "launched one by one, with the same result, slower where the model is small",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        self.last = graph
        return graph, place


def _timed(  # pragma: no cover - GPU
    run: Callable[[], object], device: torch.device
) -> tuple[float, float]:
    """Seconds until Python has launched it all, and until the card has finished."""
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    run()
    launched = time.perf_counter()
    torch.cuda.synchronize(device)
    return launched - began, time.perf_counter() - began


def _kind(batch: Batch) -> tuple[int, bool]:  # pragma: no cover - GPU
    return len(batch[0]), batch[1]
