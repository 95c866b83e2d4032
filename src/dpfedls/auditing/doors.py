"""Every way out of the process while a run goes on: files opened for writing, and the network.

Python reports these by itself to whoever listens (PEP 578), also from libraries. A listener cannot
be removed again, so there is one for the whole process, which does nothing unless it is asked to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OUTWARD = {"socket.connect", "socket.sendto", "os.chmod", "os.utime", "os.setxattr", "os.chown"}
"""Never needed by a run; rights and times of files could carry a message."""
CACHES = (".pyc", ".nbi", ".nbc")  # of code: made from no data
_listeners: list[list[tuple[str, str]]] = []
_installed: list[bool] = []


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """(event, path) of all that is opened for writing or goes outward meanwhile."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hear)
    heard: list[tuple[str, str]] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)


def door_problems(heard: list[tuple[str, str]], folder: Path) -> list[str]:
    """What was written outside the run folder, or sent, or said by a file's rights and times."""
    problems = []
    for event, path in heard:
        if event != "open":
            problems.append(f"a run calls {event}")
        elif not _harmless(path, folder):
            problems.append(f"a run writes {Path(path).name}, which is not in its folder")
    return list(dict.fromkeys(problems))


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _listeners:
        return
    if event in OUTWARD:
        heard = (event, "")
    elif event == "open" and _writes(*arguments[:3]):
        heard = (event, os.fsdecode(arguments[0]))
    else:
        return
    for listener in _listeners:
        listener.append(heard)


def _writes(path: Any, mode: Any, flags: Any) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return False  # a descriptor that is open already
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _compiled() -> Path:
    """Where machine code is kept; it is made from the package's own sources."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NUMBA_CACHE_DIR") or home / "dpfedls")


def _harmless(path: str, folder: Path) -> bool:
    found = Path(path).absolute()
    return (
        found.is_relative_to(folder)
        or found.name.endswith(CACHES)
        or "__pycache__" in found.parts
        or found.is_relative_to(_compiled())
        or found.is_relative_to("/dev")
    )
