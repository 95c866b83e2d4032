"""A process without rights: nobody's, and able to write to one folder only."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

from torture.process import die_with

_NOBODY = 65534


def become_nobody(folder: Path) -> None:
    """For good, and at work in that folder from now on. Only root can change its user."""
    for name in ("utf-16-be", "utf-16-le", "utf-32-be", "utf-32-le"):
        codecs.lookup(name)  # json asks for them, and nobody may read where Python lies
    os.chdir(folder)
    if os.geteuid() != 0:
        return
    os.chown(folder, _NOBODY, _NOBODY)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    os.environ["HOME"] = str(folder)
    die_with(os.getppid())  # the kernel forgets it with the user
