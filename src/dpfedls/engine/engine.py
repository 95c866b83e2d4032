"""A way to train a cohort, and what leaves it: the sum of the clipped updates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dpfedls.clipping import Bound, clipped_sum
from dpfedls.engine.ranks import ALONE, Workers
from dpfedls.engine.threads import one_torch_thread
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalUpdate
from dpfedls.parameters import Total, Updates, Vector
from dpfedls.people.lazy import People, someone
from dpfedls.people.rescale import Slopes
from dpfedls.people.units import AS_GIVEN, AsGiven
from dpfedls.sampling import Indices


@dataclass(frozen=True)
class Engine:
    """A local update for these people, and how to share a cohort's work.

    Guarantees: one client moves ``clipped_total`` by one clipped update, whoever else is there.
    """

    name: str  # "looped", "vmapped" or "compiled"
    reason: str  # why this one, and what prevented a faster one
    update: LocalUpdate
    data: People
    block_size: int  # how many clients train at once: bounds memory; a GPU may round otherwise
    ranks: Workers = ALONE  # who else trains a part of each cohort
    failing: Literal["stop", "zero"] = "stop"  # what a person who cannot be trained does to the run
    losses: Callable[[Vector, Indices], Tensor] | None = None  # each client's, for votes
    slopes: Callable[[Vector, Indices, int], Tensor] | None = None  # and their slopes by the scores
    made_in: Callable[[AsGiven], Engine] | None = None  # if units of inputs are found on the way

    def in_units(self, units: Any) -> Engine:
        """The same for people whose inputs have these units; itself where units are settled."""
        if self.made_in is None or units is AS_GIVEN:
            return self
        made = self.made_in(units)
        judged = {"losses": made.losses, "slopes": made.slopes}
        return replace(self, update=made.update, data=made.data, **judged)

    def clipped_total(
        self, params: Vector, cohort: Indices, round_: int, key: int, bound: Bound
    ) -> Total:
        """The sum of the cohort's clipped updates, in float64; sensitive until noise is added."""
        mine = self.ranks.share(cohort, self.data.sizes[cohort])
        total = _zeros(params, bound)
        with self._threads(), self._silence():
            for block in self._blocks(mine):
                total += self._block_total(params, block, round_, key, bound)
        return self.ranks.total(total, round_)

    def _threads(self) -> AbstractContextManager[None]:
        """The faster engines bring threads of their own; the looped one has torch's."""
        return nullcontext() if self.name == "looped" else one_torch_thread()

    def _silence(self) -> AbstractContextManager[Any]:
        """Where nobody may stop a run, nobody may be heard: a warning would tell who was drawn."""
        return warnings.catch_warnings(action="ignore") if self.failing == "zero" else nullcontext()

    def _blocks(self, cohort: Indices) -> Iterator[Indices]:
        """The cohort in blocks; clients of like size share one, so that little is padded."""
        by_size = cohort[np.argsort(self.data.sizes[cohort], kind="stable")]
        for start in range(0, len(by_size), self.block_size):
            yield by_size[start : start + self.block_size]

    def _block_total(
        self, params: Vector, block: Indices, round_: int, key: int, bound: Bound
    ) -> Total:
        """The block's part of the sum; where memory ends, by halves, since a block may be halved.

        Nothing is said of it: how many fit follows how many were drawn, which is private.
        """
        try:
            updates = self._updates(params, block, round_, key, bound)
            return clipped_sum(updates, bound, self._better(params, block, bound))
        except torch.OutOfMemoryError:
            pass  # go on below: as long as the error is at hand, so are the tensors it left
        if len(block) > 1:
            halves = np.array_split(block, 2)
            one, two = (self._block_total(params, half, round_, key, bound) for half in halves)
            return one + two
        if self.failing == "zero" and self._fits(params, bound.norm):
            return _zeros(params, bound)
        raise InputError(
            "one client alone does not fit into the device's memory; end what else uses it, take "
            "another device, or set a smaller local.batch_size for a new run"
        )

    def _fits(self, params: Vector, radius: float) -> bool:
        """Whether the device still has room for the person who was tried before the start.

        The same one whoever is drawn. If so, another who does not fit is no reason to stop, which
        would tell that they were drawn; if not, every round would be paid for and nothing learned.
        """
        try:
            self.update(params, np.array([someone(self.data)]), 0, 0, radius)
        except torch.OutOfMemoryError:
            return False
        except KeyboardInterrupt:
            raise
        except BaseException:  # their samples can no longer be loaded, say
            return True
        return True

    def _updates(
        self, params: Vector, block: Indices, round_: int, key: int, bound: Bound
    ) -> Updates:
        try:
            if bound.question is not None:
                return self.answers(params, block, bound)
            trained = round_ - bound.asked
            return self.update(params, block, trained, key, bound.norm, bound.pace)
        except (torch.OutOfMemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a loader is a person's code too
            if self.failing == "zero":
                return self._each_alone(params, block, round_, key, bound)
            if isinstance(error, InputError):
                raise
            # Whose fault it is cannot be told: samples that do not fit fail in our code, too.
            ours = '; if they do, the fault is ours: engine = "looped" may train them'
            raise InputError(
                f"the {self.name} engine could not train {_named(block)} in round {round_} "
                f"({first_line(error)}); make model, loss and these clients' samples fit"
                f"{'' if self.name == 'looped' else ours}"
            ) from error

    def answers(self, params: Vector, block: Indices, bound: Bound) -> Updates:
        """What each client says of its samples, as long as an update may be."""
        if isinstance(bound.question, Slopes):
            assert self.slopes is not None
            slopes = self.slopes(params, block, bound.question.scores)
            rows = bound.question.answers(slopes)
        else:
            given = (self.data.client(int(j))[0] for j in block)
            rows = torch.stack([bound.question.answers(features) for features in given])
        return (bound.norm * rows).float().to(params.device)

    def _better(self, params: Vector, block: Indices, bound: Bound) -> Tensor | None:
        """For whom the model is better than the earlier one, where that is asked."""
        if bound.earlier is None:
            return None
        assert self.losses is not None
        try:
            return self.losses(params, block) < self.losses(bound.earlier, block)
        except (torch.OutOfMemoryError, KeyboardInterrupt):
            raise
        except BaseException:  # a loader is a person's code too
            if self.failing == "stop":
                raise
        if len(block) == 1:
            return params.new_zeros(1, dtype=torch.bool)
        alone = (self._better(params, block[[i]], bound) for i in range(len(block)))
        return torch.cat([vote for vote in alone if vote is not None])

    def _each_alone(
        self, params: Vector, block: Indices, round_: int, key: int, bound: Bound
    ) -> Updates:
        """Whoever fails alone counts as zero: others must not, and nobody may hear who it was."""
        if len(block) == 1:
            return _zeros(params, replace(bound, indicator=0.0)).float()[None]
        rows = [self._updates(params, block[[i]], round_, key, bound) for i in range(len(block))]
        return torch.cat(rows)


def _zeros(params: Vector, bound: Bound) -> Total:
    """A sum of nobody's contributions."""
    length = len(params) if bound.question is None else bound.question.length
    return params.new_zeros(length + (bound.indicator > 0), dtype=torch.float64)


def first_line(error: BaseException) -> str:
    """The first sentence of what an exception says."""
    lines = str(error).strip().splitlines()
    said = lines[0].partition(". ")[0] if lines else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _named(clients: Indices) -> str:
    few = ", ".join(map(str, clients[:3]))
    return f"client {few}" if len(clients) == 1 else f"clients {few}{', …' * (len(clients) > 3)}"
