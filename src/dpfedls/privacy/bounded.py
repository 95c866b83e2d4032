"""Files of a run folder, read within bounds: a folder may come from anybody.

A pipe in place of a file would keep us waiting for good, a sparse file of terabytes would take all
memory. What we write ourselves stays far below these sizes.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedls.errors import InputError

SETTINGS = 2**20  # bytes: a recipe
STATEMENT = 2**24
LOG = 2**30  # millions of rounds; a ledger too
TENSORS = 2**34  # a billion parameters and what a denoiser remembers of them


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a regular file; InputError for anything else and for more than ``most``."""
    with _opened(path, most) as file:
        return file.read()


def file_digest(path: Path, most: int = TENSORS) -> str:
    """SHA-256 of a file's bytes, of which few are in memory at a time."""
    with _opened(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_size(path: Path, most: int) -> None:
    """Refuse a file that is there but no regular one, or larger than we ever write.

    It is not opened: a process that closes a database's file loses its own locks on it (POSIX).
    """
    if path.exists():
        _check(path, path.stat(), most)


@contextmanager
def _opened(path: Path, most: int) -> Iterator[io.BufferedReader]:
    # Without O_NONBLOCK the mere opening of a pipe waits until somebody writes into it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        _check(path, os.fstat(file.fileno()), most)
        yield file


def _check(path: Path, found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a regular file; restore it from a backup")
    if found.st_size > most:
        raise InputError(
            f"{path} has {found.st_size} bytes, but dpfedls never writes more than {most} there, "
            "and reading it could take all memory; restore it from a backup"
        )
