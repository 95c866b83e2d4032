"""What every runner reports: a JSON line a round and, after the last, the peak of its memory.

Read from /proc, so Linux only. Under torchrun the launcher belongs to the system measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from workloads import WORKLOADS

_ROOT = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()


def parser() -> argparse.ArgumentParser:
    """What every runner is told; a runner adds its own settings."""
    made = argparse.ArgumentParser()
    made.add_argument("workload", choices=WORKLOADS)
    made.add_argument("--rounds", type=int, help="how many to time after the first")
    return made


class Rounds:
    """``done()`` at the end of every round prints how long the round took.

    The first is counted from the start of the process, imports included.
    """

    def __init__(self, timed: int) -> None:
        self.total, self.count, self._began = 1 + timed, 0, 0.0

    def done(self) -> None:
        """A round has ended; its last act was the new model."""
        now = time.perf_counter()
        self.count += 1
        if self.count == 1:
            self._say(first_round=_age())
        else:
            self._say(round=now - self._began)
        if self.count == self.total:
            self._say(peak_mib=peak_mib())
        self._began = time.perf_counter()

    def _say(self, **values: float) -> None:
        print(json.dumps(values), flush=True)


def _age() -> float:
    """Seconds since the system's first process was started."""
    ticks = int(_stat(_ROOT)[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def peak_mib() -> float:
    """The peaks of the resident memory of all processes of the system, added up.

    Pages that processes share count once for each.
    """
    parents = dict(_parents())
    family = {_ROOT}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(map(_high_water_mark, family)) / 1024


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            yield int(folder.name), int(_stat(folder.name)[1])


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the second may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _high_water_mark(pid: int) -> int:
    """KiB; 0 of a process that has ended meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
