"""How functions become machine code: by Numba, once a machine, then from a cache on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile when first called, and run without Python's lock, so that threads do not wait.

    Sums may be regrouped, as a vectorised loop must; infinities and NaN keep their meaning. A loop
    that stores as well as sums may be vectorised or not by how near its arrays lie, and then rounds
    otherwise: sum in a loop of its own, or see to where the arrays lie (``update._apart``).
    """
    return _compiled(function, fastmath={"reassoc", "contract", "nsz"})


def exact_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but every operation rounds as it is written, on every machine."""
    return _compiled(function, fastmath=False)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_CACHE or before)
    try:
        return numba.njit(cache=_CACHE is not None, **options)(function)
    finally:
        config.CACHE_DIR = before


def _cache() -> Path | None:
    """A folder for these very sources: Numba looks only at the file of the outermost function.

    A function elsewhere is in no danger as long as it calls none that is compiled in another file.
    None where there is no such folder, and every process compiles anew.
    """
    here = Path(__file__)
    files = [here, *sorted((here.parent / "compiled").glob("*.py"))]
    sources = b"".join(path.read_bytes() for path in files)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "dpfedls" / f"compiled-{hashlib.sha256(sources).hexdigest()[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):
        return None
    return folder


_CACHE = _cache()
