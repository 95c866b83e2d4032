"""The layer between a process and its disk: shim.c, compiled and loaded before everything else."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from torture import places

_LIBRARY = "TORTURE_SHIM"  # where the layer lies, once this process runs with it
_READY = "TORTURE_READY"
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


def preload() -> None:
    """Start this program anew with the layer loaded, and with libraries that keep to one thread.

    Without a C compiler there is no layer. A process with threads must not be forked: locks that
    another thread holds stay locked in the child.
    """
    if _READY in os.environ:
        return
    changes = _ONE_THREAD | {_READY: "1"}
    compiler = shutil.which("cc")
    if compiler is not None:
        library = places.own(Path(tempfile.gettempdir())) / "shim.so"
        source = Path(__file__).with_name("shim.c")
        words = [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
        subprocess.run(words, check=True)
        changes |= {"LD_PRELOAD": str(library), _LIBRARY: str(library)}
    words = [sys.executable, "-m", "torture", *sys.argv[1:]]
    os.execve(sys.executable, words, os.environ | changes)


def remove() -> None:
    """At the end."""
    if available():
        places.remove(Path(os.environ[_LIBRARY]).parent)


def available() -> bool:
    """Whether disks can be made to fail and to forget."""
    return _LIBRARY in os.environ


def fail_write(folder: Path, nth: int, error: int, for_good: bool) -> None:
    """The n-th write below a folder fails, or that and all after it, in this process."""
    _library().torture_watch(str(folder).encode(), -1, nth, error, for_good)


def count_writes(folder: Path) -> None:
    """Count what could fail below a folder, from now on."""
    _library().torture_watch(str(folder).encode(), -1, 0, 0, 0)


def writes() -> int:
    """How many there were."""
    return _library().torture_writes()


def write_down(folder: Path, trace: int) -> None:
    """Every step on the disk below a folder goes to an open file, in order."""
    _library().torture_watch(str(folder).encode(), trace, 0, 0, 0)


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ[_LIBRARY])
    library.torture_watch.argtypes = [
        *(ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int),
    ]
    library.torture_writes.restype = ctypes.c_long
    return library
