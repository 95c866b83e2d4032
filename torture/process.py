"""Commands of dpfedls in processes of their own, which may be killed.

A process is forked from one that has imported everything, so a case does not pay for importing
torch. It is honest as long as this process opens no run folder itself: what a killed process
leaves behind lies on the disk, and the next one starts from there alone.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TRACEBACK = 70  # exit code of a child whose work raised what nobody caught
LIMIT = 120.0  # seconds after which a command counts as hanging
_LIBC = ctypes.CDLL(None)
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


class Answer(NamedTuple):
    """How a process ended; the code is negative where a signal ended it."""

    code: int
    out: str
    err: str
    hung: bool = False

    @property
    def killed(self) -> bool:
        """Whether it was killed before it had ended by itself."""
        return self.code == -signal.SIGKILL

    def problems(self, *codes: int) -> list[str]:
        """What a person should never see: a traceback, another exit code, no line that says why."""
        found = []
        if self.hung:
            found.append("no end in time")
        elif self.code not in (codes or (0, 1, 2, 3)):
            found.append(f"exit code {self.code}; {_last(self.err)}")
        if "Traceback" in self.err:
            found.append(f"a traceback: {_last(self.err)}")
        elif self.code > 0 and self.code != TRACEBACK and not self.complaint:
            found.append(f"exit code {self.code} without a line that says why")
        return found

    @property
    def complaint(self) -> str:
        """The line that says what is wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("dpfedls: ")]
        return lines[-1] if len(lines) == 1 else ""


def command(*words: str | Path) -> Callable[[], None]:
    """Work for ``forked``: dpfedls with these words on its command line."""

    def work() -> None:
        from dpfedls.commands.main import main

        sys.argv = ["dpfedls", *map(str, words)]
        main()

    return work


def forked(
    work: Callable[[], object], kill_after: float | None = None, limit: float = LIMIT
) -> Answer:
    """Do the work in a new process, killed with -9 after so many seconds unless it has ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = start(work, out.fileno(), err.fileno())
        ended = _wait(child, limit if kill_after is None else kill_after)
        if not ended:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return Answer(code, texts[0], texts[1], not ended and kill_after is None)


def start(work: Callable[[], object], out: int = 1, err: int = 2) -> int:
    """A new process at this work, which dies with this one; its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _child(work, out, err, parent)
    return child


def die_with(parent: int) -> None:
    """Be killed when the parent ends; to be said again after a change of user."""
    _LIBC.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was faster
        os._exit(TRACEBACK)


def limit_memory(more: int) -> None:
    """From now on this process may take so many bytes beyond what it has."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))


def _wait(child: int, seconds: float) -> bool:
    """Whether the process ended within that time."""
    handle = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(1000 * seconds))
    finally:
        os.close(handle)


def _child(work: Callable[[], object], out: int, err: int, parent: int) -> None:
    """Never returns: what stands behind the fork is the parent's."""
    code = TRACEBACK
    try:
        die_with(parent)
        os.dup2(out, 1)
        os.dup2(err, 2)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing on stderr"
