"""How functions become machine code: by Numba, once a machine, then from a cache on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core import sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc

config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
log = logging.getLogger("dpfedls")


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of machine code, compiled together with whoever calls it.

    Sums may be regrouped, as a vectorised loop must; infinities and NaN keep their meaning. A loop
    that stores as well as sums may be vectorised or not depending on the distance between its
    arrays, and then rounds otherwise: give each sum a loop of its own, or fix the distance
    (``update._apart``).
    """
    return numba.njit(**_FAST)(function)


def exact_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile when first called; every operation rounds as it is written, on every machine."""
    dispatcher: Any = numba.njit(**_OPTIONS)(function)
    _cached(dispatcher, function)
    return dispatcher


@functools.cache
def address_of(function: Callable[..., Any], signature: Any) -> int:
    """Where the function's machine code starts; it runs without Python's lock.

    Only functions asked for here are compiled, each once whatever the model it serves.
    """
    code: Any = CFunc(function, sigutils.normalize_signature(signature), {}, dict(_FAST))
    _cached(code, function)
    code.compile()
    _KEPT.append(code)
    return code.address


@functools.cache
def callable_from_python(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """The same for a function that Python calls."""
    dispatcher: Any = numba.njit(**_FAST)(function)
    _cached(dispatcher, function)
    dispatcher.compile(signature)
    return dispatcher


class _Cache(FunctionCache):
    """A cache that may be damaged or full: then code is compiled, which only takes longer."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # pickle and LLVM name a damaged file in many ways
            self._give_up("cannot be read", error)
            with contextlib.suppress(OSError):
                self.flush()  # the damaged entry, so that it is written anew
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:
            self._give_up("cannot be written", error)

    def _give_up(self, why: str, error: Exception) -> None:
        log.warning(
            "machine code of %s in %s %s (%s); it is compiled anew, which takes a few seconds",
            self._py_func.__name__,
            self.cache_path,
            why,
            type(error).__name__,
        )


def _cached(code: Any, function: Callable[..., Any]) -> None:
    if _CACHE is not None:
        # A folder per way of calling: code to be called by Python has no address for machine code.
        with _cache_folder(_CACHE / type(code).__name__.lower()):
            code._cache = _Cache(function)


@contextlib.contextmanager
def _cache_folder(folder: Path) -> Iterator[None]:
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
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


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_FAST: dict[str, Any] = {**_OPTIONS, "fastmath": {"reassoc", "contract", "nsz"}}
_CACHE = _cache()
_KEPT: list[Any] = []  # code whose address is in use must not be freed
