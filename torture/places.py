"""Folders to work in: gone at the end, and after kill -9 gone when the next torture starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_NAME = "torture-"


def own(base: Path) -> Path:
    """A folder of this process; those of processes that are no more are removed."""
    for path in base.glob(f"{_NAME}*"):
        owner = path.name.removeprefix(_NAME)
        if not (owner.isdecimal() and Path("/proc", owner).exists()):
            shutil.rmtree(path, ignore_errors=True)
    folder = base / f"{_NAME}{os.getpid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder


def remove(folder: Path) -> None:
    """At the end."""
    shutil.rmtree(folder, ignore_errors=True)
