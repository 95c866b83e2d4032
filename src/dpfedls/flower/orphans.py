"""No process of a federation outlives the one that started it, not even after kill -9.

All of them carry a mark in their environment, which Flower hands on to whatever it starts, in
sessions of their own too. A watchman waits for the owner's end and ends what is left; where the
watchman was killed as well, the next federation on this machine does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "DPFEDLS_FEDERATION"  # in the environment of every process of a federation
_PATIENCE = 5.0  # seconds for killed processes to be gone


def new_mark() -> str:
    """A mark that names its owner: nobody else has this pid with this start."""
    return f"{secrets.token_hex(16)}-{os.getpid()}-{_started(os.getpid())}"


def watch_over(mark: str) -> subprocess.Popen[bytes]:
    """Start the watchman; closing its stdin, as the end of this process does, sets it to work."""
    return subprocess.Popen(
        [sys.executable, "-m", "dpfedls.flower.orphans", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and the end of a terminal are not for it
    )


def die_with_parent(parent: int) -> None:
    """Called by a process that was just forked: from now on the kernel ends it with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def marked(start: str) -> dict[int, str]:
    """Processes whose mark begins so, and their marks."""
    found, wanted = {}, f"{MARK}={start}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            items = entry.read_bytes().split(b"\0")
            mark = next((item for item in items if item.startswith(wanted)), None)
            if mark is not None:
                text = mark.decode(errors="replace").partition("=")[2]
                found[int(entry.parent.name)] = text
    return found


def sweep(start: str) -> None:
    """End every process whose mark begins so, and what they start meanwhile."""
    deadline = time.monotonic() + _PATIENCE
    while (left := marked(start)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def sweep_abandoned() -> None:
    """End the processes of federations whose owner is gone: they would go on paying."""
    for mark in set(marked("").values()):
        owner = re.match(r"[0-9a-f]{32}-(\d+)-(\d+)", mark)
        if owner and _started(int(owner[1])) != owner[2]:
            sweep(owner[0])


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; "" where there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = status.rpartition(")")[2].split()  # a program's name may hold anything
    return "" if fields[0] == "Z" else fields[19]


if __name__ == "__main__":
    sys.stdin.read()
    sweep(sys.argv[1])
