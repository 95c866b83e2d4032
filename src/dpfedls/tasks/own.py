"""A person's own code, named in a recipe: ``package.module:name`` or ``./file.py:name``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from dpfedls.errors import InputError

_PLAIN = (bool, int, float, str, list, tuple, type(None))


def is_own(name: str) -> bool:
    """Whether a name is that of a person's own code rather than of a part of the package."""
    return ":" in name


def registered(group: str, name: str) -> str:
    """What an installed package registers under a short name, in full; else the name as it is.

    ``group`` is "tasks", "denoisers" or "loggers": the entry points dpfedls.tasks and so on.
    """
    found = list(entry_points(group=f"dpfedls.{group}", name=name))
    if len({entry.value for entry in found}) > 1:
        homes = ", ".join(sorted(entry.value for entry in found))
        raise InputError(f"{name!r} is registered by several packages; name one in full: {homes}")
    return found[0].value if found else name


def load(name: str, what: str) -> Any:
    """What stands there under that name; ``what`` is the key of the recipe that names it."""
    place, _, attribute = name.rpartition(":")
    module = _file(Path(place), name, what) if place.endswith(".py") else _module(place, name, what)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(
                f"{what} = {name!r}: {place} has no {attribute!r}; name a function or class that "
                "stands there"
            )
        found = getattr(found, part)
    return found


def absolute(name: str, base: Path) -> str:
    """The same name with its file, if it has one, found from ``base``: as a run folder needs it."""
    place, _, attribute = name.rpartition(":")
    return f"{(base / place).resolve()}:{attribute}" if place.endswith(".py") else name


def name_of(thing: Any) -> str:
    """How a recipe would name an object: its module and its qualified name."""
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"


def source_digest(thing: Any) -> str | None:
    """SHA-256 of the file that an object's code stands in; None where there is no file."""
    kind = thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing)
    try:
        path = inspect.getsourcefile(kind)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else None
    except (TypeError, OSError):
        return None


def settings_digest(thing: Any) -> str | None:
    """SHA-256 of an object's attributes; None where it has none.

    Of denoisers alone, which see nothing but releases: from the digest of a value that was computed
    from private samples, a loss's last one, say, the value can be guessed.
    """
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return None
    names = (*getattr(thing, "__struct_fields__", ()), *getattr(thing, "__dict__", ()))
    values = {name: getattr(thing, name) for name in names}
    told = {  # every torch module has a dozen private tables
        name: repr(value) if isinstance(value, _PLAIN) else name_of(value)
        for name, value in values.items()
        if not name.startswith("_") or (isinstance(value, _PLAIN) and value is not None)
    }
    return hashlib.sha256(repr(told).encode()).hexdigest() if told else None


def _module(place: str, name: str, what: str) -> ModuleType:
    sys.path.insert(0, "")  # as for ``python -m``: what lies in this folder can be named
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise InputError(
            f"{what} = {name!r}: {place} cannot be imported ({error}); install it, or give a file "
            "as ./file.py:name"
        ) from error
    except Exception as error:
        raise _fails(place, name, what, error) from error
    finally:
        sys.path.remove("")


def _file(path: Path, name: str, what: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{what} = {name!r}: {path} is not there; check the path")
    # One module per file and content: the same file named twice is loaded once.
    key = f"dpfedls_own_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise _fails(path, name, what, error) from error
    return module


def _fails(place: object, name: str, what: str, error: Exception) -> InputError:
    return InputError(
        f"{what} = {name!r}: {place} fails when loaded ({type(error).__name__}: {error})"
    )
