"""Files that survive a power cut: written whole and on disk before anything relies on them."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpfedls.errors import InputError

_SHARED = 0o666  # less what the umask takes away
PRIVATE = 0o600
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.part")


def write_whole(path: Path, content: bytes, mode: int = _SHARED) -> None:
    """Replace a regular file in one step, or make it; the new one is there after a power cut.

    Guarantees: a crash or a power cut leaves the old file or the new one; a device, a folder or a
    link is never replaced; no link that somebody planted is followed.
    """
    swap_in(path, content, mode)
    sync_folder(path.parent)


def swap_in(path: Path, content: bytes, mode: int = _SHARED) -> None:
    """The same, a disk access cheaper: a power cut may yet bring the old file back."""
    require_regular(path)
    make_folder(path.parent)
    # Nobody can guess the name, and O_EXCL follows no link: what is written is a new file of ours.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with naming(path):
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
                file.flush()  # or the sync would put an empty file on disk
                _sync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def append(path: Path, content: bytes, mode: int = _SHARED) -> None:
    """Add to the end of a file, made if absent; on disk when this returns."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with naming(path), open(os.open(path, flags, mode), "ab") as file:
        file.write(content)
        file.flush()
        _sync(file.fileno())


def require_regular(path: Path) -> None:
    """Refuse to write where anything but a regular file stands."""
    try:
        kind = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "a link" if stat.S_ISLNK(kind) else "a device"
        raise InputError(
            f"{path} is {what}, and writing would replace it; nothing was touched: give the path "
            "of a file"
        )


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that a power cut does not take them away again."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in new:
        sync_folder(place.parent)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Whoever else begins in this folder waits; a process that dies lets go."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network disks cannot
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Put a folder's names on disk: a file that was made or renamed is there after a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def is_temporary(path: Path) -> bool:
    """Whether a crash left this behind while ``write_whole`` was at work."""
    return _TEMPORARY.fullmatch(path.name) is not None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of a disk name the file, which a failing write by itself does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sync(handle: int) -> None:
    os.fsync(handle)
