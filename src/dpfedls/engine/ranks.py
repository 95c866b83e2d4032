"""Who shares the work of a run: one process, or the ranks that torchrun started.

Every rank holds the same model and trains its part of each cohort; one sum a round goes around, and
the rest of a round is a function of the seed, so all ranks stay alike. Rank 0 holds the run's
folder, the others only train. The sum travels by gloo on every device: it is one vector a round,
and gloo, unlike nccl, notices at once that a peer is gone.
"""

from __future__ import annotations

import heapq
import logging
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from dpfedls.errors import BudgetExhausted, InputError, RankLost
from dpfedls.parameters import Vector
from dpfedls.sampling import Indices

PATIENCE = timedelta(minutes=10)  # with a rank that hangs; one that died is noticed at once
ROLL_CALL = 3.0  # seconds for the ranks that are left to say so


def share(clients: Indices, work: Indices, rank: int, size: int) -> Indices:
    """A rank's part of the cohort: from the largest on, each client to whoever has least to do.

    Every client falls to one rank, and no two ranks differ by more than the largest client's work.
    """
    loads, mine = [(0, r) for r in range(size)], []
    for place in np.argsort(-work, kind="stable"):
        load, least = loads[0]
        heapq.heapreplace(loads, (load + int(work[place]), least))
        if least == rank:
            mine.append(place)
    return clients[mine]


class Alone:
    """One process does everything."""

    rank, size = 0, 1

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody waits."""

    def tell(self, value: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        return value

    def begin(self, folder: Path) -> None:
        """Wait until every rank is ready to train; before this nothing is written."""

    def share(self, clients: Indices, work: Indices) -> Indices:
        """The part of the cohort that falls to this rank."""
        return clients

    def total(self, part: Vector, round_: int) -> Vector:
        """The sum of all ranks' parts."""
        return part


ALONE = Alone()


class Ranks:
    """Several processes, each started with the variables that torchrun sets.

    Whatever ends the run early on one rank ends it on all, and is said once: who is first to claim
    the last word raises its error, the others leave in silence with the same exit code.
    """

    def __init__(self) -> None:
        try:
            self._store, self.rank, self.size = next(rendezvous("env://", timeout=PATIENCE))
            dist.init_process_group(
                "gloo", store=self._store, rank=self.rank, world_size=self.size, timeout=PATIENCE
            )
        except (ValueError, RuntimeError) as error:
            raise InputError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but the other processes cannot be "
                f"reached ({str(error).splitlines()[0]}); start them all with: torchrun "
                "--nproc-per-node 2 -m dpfedls run …, or unset WORLD_SIZE to run alone"
            ) from error
        self._folder: Path | None = None
        self._round = 0
        # torchrun ends the others when one fails: they shall still say what happened.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", self.rank))
            torch.cuda.set_device(local % torch.cuda.device_count())
        if self.rank > 0:
            logging.disable(logging.WARNING)  # rank 0 warns of the same

    def tell(self, value: Any = None) -> Any:
        told = [value]
        self._together(dist.broadcast_object_list, told)
        return told[0]

    def begin(self, folder: Path) -> None:
        self._together(dist.barrier)
        self._folder = folder

    def share(self, clients: Indices, work: Indices) -> Indices:
        return share(clients, work, self.rank, self.size)

    def total(self, part: Vector, round_: int) -> Vector:
        self._round = round_  # so many are released
        total = part.cpu()
        self._together(dist.all_reduce, total)
        return total.to(part.device)

    def _together(self, collective: Any, *args: Any) -> None:
        try:
            collective(*args)
        except RuntimeError as error:
            raise RankLost("the connection to another rank broke") from error

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if error is not None:
                self._end(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    def _end(self, error: BaseException) -> None:
        """Return if the error shall be raised here; else raise what shall be."""
        own = not isinstance(error, RankLost | KeyboardInterrupt)
        try:
            self._store.set_timeout(timedelta(seconds=ROLL_CALL))
            if own or self._store.check(["end"]):
                self._claim(_exit_code(error))
            dist.destroy_process_group()  # now every other rank's sum breaks, and it comes here too
            missing = self._missing()
            if not own:
                self._claim(1)
        except RuntimeError:  # the store is gone with the machine that held it
            missing = [0]
        if missing and not own:
            raise RankLost(self._message(missing)) from error

    def _claim(self, code: int) -> None:
        """Have the last word, or leave with the exit code of the rank that has it."""
        word = f"{self.rank} {code}"
        said = self._store.compare_set("end", "", word).decode()
        if said != word:
            self._store.set(f"here/{self.rank}", "")
            raise SystemExit(int(said.split()[1]))

    def _missing(self) -> list[int]:
        """The ranks that do not answer a roll call."""
        self._store.set(f"here/{self.rank}", "")
        missing, deadline = list(range(self.size)), time.monotonic() + ROLL_CALL
        while missing and time.monotonic() < deadline:
            time.sleep(0.02)
            missing = [rank for rank in missing if not self._store.check([f"here/{rank}"])]
        return missing

    def _message(self, missing: list[int]) -> str:
        lost = f"rank {', '.join(map(str, missing))} of {self.size} stopped answering"
        if self._folder is None:
            return f"{lost} before training began; nothing is lost: start the same command again"
        return (
            f"{lost} after round {self._round}; what was released is kept, go on with: torchrun "
            f"--nproc-per-node {self.size} -m dpfedls resume {self._folder}"
        )


Workers: TypeAlias = Alone | Ranks


def find_workers() -> Workers:
    """Those that torchrun started, or this process alone."""
    return Ranks() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ALONE


def _exit_code(error: BaseException) -> int:
    """As the command line has it."""
    if isinstance(error, InputError | OSError):
        return 2
    return 3 if isinstance(error, BudgetExhausted) else 1
