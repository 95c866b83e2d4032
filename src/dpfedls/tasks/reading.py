"""Damaged data files, said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedls.errors import InputError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file, whatever a cut or altered one makes its reader raise."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of its own kind in every library, and of several in most
        why = " ".join(str(error).split())
        raise InputError(
            f"{path} is damaged or cut short ({why}); people's samples would be missing: remove "
            "it and fetch it again"
        ) from error
