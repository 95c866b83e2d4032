"""Several runs at the same time, each in a process of its own; or one after another in this one.

With a number of jobs, every run has one thread of the CPU, whatever the number is: sums are then
made in the same order, and the results are equal to the last digit. On a GPU, too: two runs of the
LSTM, each trying its model with sixteen threads on sixteen cores, took minutes to start.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dpfedls.errors import InputError

if TYPE_CHECKING:
    from dpfedls.runs.recipe import Recipe
    from dpfedls.runs.record import RoundRecord, Watch


@dataclass(frozen=True)
class Job:
    """A run to be made; what else ``work`` needs to know is in a subclass."""

    name: str  # for people
    recipe: Recipe


J = TypeVar("J", bound=Job)
T = TypeVar("T")
Line = Any  # one end of a pipe: its type depends on the operating system
_PATIENCE = 10.0  # seconds in which a process ends by itself; Python takes one of CPU time


class ProcessLost(RuntimeError):
    """The process of a job is gone, killed for instance. The other jobs go on."""


class SideBySide:
    """Makes runs, ``jobs`` at a time; without a number one by one, with all of torch's threads.

    Used in a ``with`` statement, at whose end no process is left. A run that is under way then, at
    Ctrl-C for instance, is stopped as Ctrl-C stops one in this process: its folder can be resumed.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs
        self._idle: list[_Worker] = []
        self._busy: dict[Line, _Worker] = {}

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._busy.values():
            worker.process.terminate()
        for worker in self._idle:
            worker.line.close()
        for worker in [*self._busy.values(), *self._idle]:
            worker.wait_for_its_end()

    def outcomes(
        self,
        work: Callable[[J, Watch], T],
        jobs: Sequence[J],
        watch: Callable[[J, RoundRecord], None],
    ) -> Iterator[tuple[J, T | Exception]]:
        """Each job as it ends, with what ``work`` returned or raised; ``watch`` sees every round.

        ``work`` is a function of a module, since other processes import it.
        """
        if min(self._jobs or 1, len(jobs)) < 2:
            attempt = _attempt if self._jobs is None else _attempt_in_one_thread
            for job in jobs:
                yield job, attempt(work, job, partial(watch, job))
            return
        waiting, under_way = deque(jobs), dict[Line, J]()
        while waiting or under_way:
            while waiting and len(under_way) < (self._jobs or 1):
                job = waiting.popleft()
                under_way[self._hand_out(work, job)] = job
            for line in wait(list(under_way)):
                job, said = under_way[line], self._answer(line)
                if isinstance(said, _Ended):
                    del under_way[line]
                    yield job, said.outcome
                else:
                    watch(job, said)

    def _hand_out(self, work: Callable[[J, Watch], Any], job: J) -> Line:
        """Give the job to a process that has none; where its answers come from."""
        try:
            content = ForkingPickler.dumps((work, job))
        except Exception as error:  # whatever an object of somebody's own raises
            raise InputError(
                f"{job.name} cannot be sent to another process ({error}); leave --jobs out, which "
                "makes runs one by one in this process"
            ) from error
        worker = self._idle.pop() if self._idle else _Worker.started()
        self._busy[worker.line] = worker
        with suppress(OSError):  # it is gone, which is seen when its answer is read
            worker.line.send_bytes(content)
        return worker.line

    def _answer(self, line: Line) -> RoundRecord | _Ended:
        try:
            said = line.recv()
        except (EOFError, OSError):
            return _Ended(self._busy.pop(line).lost())
        if isinstance(said, _Ended):
            self._idle.append(self._busy.pop(line))
        return said


class _Worker(NamedTuple):
    process: SpawnProcess
    line: Line

    @staticmethod
    def started() -> _Worker:
        context = get_context("spawn")
        line, its_line = context.Pipe()
        process = context.Process(target=_serve, args=(its_line,))
        # A terminal sends Ctrl-C to all processes. A new one ignores it, from before its first
        # import: the one that started it ends it, by SIGTERM.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        its_line.close()  # else the end of the process would not end the line
        return _Worker(process, line)

    def wait_for_its_end(self) -> None:
        self.process.join(_PATIENCE)
        self.process.kill()
        self.process.join()
        self.line.close()

    def lost(self) -> ProcessLost:
        self.wait_for_its_end()
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return ProcessLost(f"its process {how}; if memory ran out, use fewer --jobs")


class _Ended(NamedTuple):
    outcome: Any


def _serve(line: Line) -> None:
    """What a process does: one job after another, until the line or its parent ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            work, job = line.recv()
            outcome = _attempt_in_one_thread(work, job, line.send)
            line.send(_Ended(_sendable(outcome) if isinstance(outcome, Exception) else outcome))
    except EOFError:
        return
    except KeyboardInterrupt:
        os._exit(1)  # the run has closed its folder, and somebody waits


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _attempt(work: Callable[[J, Watch], T], job: J, watch: Watch) -> T | Exception:
    try:
        return work(job, watch)
    except Exception as error:
        return error


def _attempt_in_one_thread(work: Callable[[J, Watch], T], job: J, watch: Watch) -> T | Exception:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more would only wait for each other, and jobs for them
    try:
        return _attempt(work, job, watch)
    finally:
        torch.set_num_threads(before)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note, of a class that is known in every process."""
    if isinstance(error, InputError):
        sent = InputError(str(error))
    elif isinstance(error, OSError) and type(error).__module__ == "builtins":
        sent = error
    else:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("".join(traceback.format_exception(error)))
    return sent
