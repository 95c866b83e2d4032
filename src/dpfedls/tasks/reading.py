"""Damaged data files, said in one line, and never unpacked beyond what the real ones hold."""

from __future__ import annotations

import gzip
import zipfile
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


def gunzip(path: Path, most: int) -> bytes:
    """What a .gz file holds; two megabytes can unpack to gigabytes, so at most ``most`` bytes."""
    with reading(path), gzip.open(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise InputError(_too_large(path, most))
    return found


def require_unpacked(path: Path, most: int) -> None:
    """Refuse an .npz file whose arrays take more than ``most`` bytes together."""
    with reading(path), zipfile.ZipFile(path) as file:
        total = sum(part.file_size for part in file.infolist())
    if total > most:
        raise InputError(_too_large(path, most))


def _too_large(path: Path, most: int) -> str:
    return (
        f"{path} unpacks to more than {most} bytes, which the real file does not, and could take "
        "all memory: remove it and fetch it again"
    )
