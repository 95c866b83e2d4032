"""What a model or a loss keeps from one call to the next.

State that one person's samples leave behind would reach the next person's update, so engines must
know of it wherever it is: in an attribute, of an object or of its class, in a container, in a
variable that a function closes over, or in a global variable of its file.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Snapshot = dict[str, Any]


def snapshot(model: nn.Module, loss: Any) -> Snapshot:
    """Every value that can be reached from the two, by the path that leads there.

    Parameters are left out: engines train copies of them. An object that does not show what it
    holds counts by its text.
    """
    found: Snapshot = {}
    seen: dict[int, Any] = {}  # the objects too, so that no other one gets the same id meanwhile
    waiting = [("the model keeps ", model), ("the loss keeps ", loss)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _PLAIN):
            found[path] = (type(value), repr(value))
        elif id(value) not in seen:
            seen[id(value)] = value
            found[path], inside = _looked_into(value)
            waiting += [(path + name, part) for name, part in inside]
    return found


def kept(before: Snapshot, after: Snapshot) -> str | None:
    """Who keeps something that is not what it was, and where; None if nobody does."""
    paths = before.keys() | after.keys()
    path = min((p for p in paths if before.get(p) != after.get(p)), default=None)
    owner, keeps, where = (path or "").partition(" keeps ")
    return owner + keeps + where.strip(" .") if path else None


_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.ModuleType)
_LIBRARIES = {"torch", "numpy", "dpfedls", "builtins", "typing", "abc", "functools"}
"""Whose functions and classes keep nothing of what they are given."""


def _looked_into(value: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """What can be compared of an object, and the objects that it holds."""
    if isinstance(value, Tensor):
        return (value.dtype, tuple(value.shape), _digest(value)), []
    if isinstance(value, np.ndarray) and value.dtype != object:
        return (value.dtype, value.shape, hashlib.sha256(value.tobytes()).digest()), []
    if isinstance(value, torch.Generator):
        return _digest(value.get_state()), []
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state), []
    if isinstance(value, Mapping):
        return len(value), [(f"[{name!r}]", part) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return len(value), [(f"[{k}]", part) for k, part in enumerate(value)]
    if isinstance(value, types.FunctionType):
        return id(value.__code__), list(_of_function(value))
    if isinstance(value, types.MethodType):
        return id(value.__func__), [(".__self__", value.__self__), ("()", value.__func__)]
    if isinstance(value, type):
        return id(value), list(_of_class(value))
    if isinstance(value, functools.partial):
        return type(value), [("()", value.func), (".args", value.args), (".kw", value.keywords)]
    return _of_object(value)


def _of_object(value: Any) -> tuple[Any, list[tuple[str, Any]]]:
    names = vars(value) if hasattr(value, "__dict__") else {}
    inside = [(f".{name}", part) for name, part in names.items() if name != "_parameters"]
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                inside.append((f".{name}", getattr(value, name)))
    if not _of_library(type(value)):
        inside.append(("", type(value)))
    if inside:
        return type(value), inside
    try:
        return repr(value), []  # an iterator from itertools tells by its text how far it is
    except Exception:  # whatever an object of somebody's own raises
        return type(value), []


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """What its objects share: data, and the functions that may reach more."""
    for base in kind.__mro__:
        for name, value in vars(base).items() if not _of_library(base) else ():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if name in ("__call__", "forward") or not name.startswith("__"):
                yield f".{name}", function


def _of_library(value: Any) -> bool:
    return str(value.__module__).partition(".")[0] in _LIBRARIES


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Its defaults, what it closes over, and the data and functions of its file that it names."""
    if _of_library(function):
        return
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield ".__dict__", function.__dict__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        mine = getattr(value, "__module__", None) == function.__module__
        if mine or not callable(value):
            yield f" {name}", value


def _names(code: types.CodeType) -> Iterator[str]:
    """The global names that a function's code uses, and those of functions inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _digest(tensor: Tensor) -> bytes | str:
    if tensor.is_meta or tensor.layout != torch.strided or not tensor.numel():
        return ""
    try:
        flat = tensor.detach().reshape(-1).contiguous().cpu()
        return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).digest()
    except RuntimeError:  # one of many clients' at once, left behind by vmap
        return f"tensor {id(tensor)}"
