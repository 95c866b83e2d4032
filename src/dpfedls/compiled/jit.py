"""How functions here become machine code: by Numba, once a machine, then from a cache on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile when first called, and run without Python's lock, so that threads do not wait.

    Sums may be regrouped, as a vectorised loop must; infinities and NaN keep their meaning.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "nsz"},
        "no_cfunc_wrapper": True,
    }
    before, config.CACHE_DIR = config.CACHE_DIR, str(_CACHE)
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in: compiled anew by every process
        return numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = before


def _cache() -> Path:
    """A folder for these very sources: Numba looks only at the file of the outermost function."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "dpfedls" / f"compiled-{hashlib.sha256(sources).hexdigest()[:12]}"


_CACHE = _cache()
