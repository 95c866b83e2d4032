"""The base of everything a recipe can name: a frozen value that is its own configuration."""

from __future__ import annotations

import functools
from numbers import Number
from typing import get_args

import msgspec

from dpfedls.errors import InputError


class Component(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """A frozen, comparable value; in TOML a table whose ``kind`` names the class."""


def check_types(value: msgspec.Struct, where: str) -> None:
    """Refuse fields of another type than declared: msgspec checks what it decodes, not Python's.

    A number of NumPy's becomes Python's own.
    """
    for field in _fields(type(value)):
        found = getattr(value, field.name)
        if isinstance(found, Number) and hasattr(found, "item"):
            found = found.item()  # pyright: ignore[reportAttributeAccessIssue]
            msgspec.structs.force_setattr(value, field.name, found)
        classes = tuple(k for k in get_args(field.type) or [field.type] if isinstance(k, type))
        if isinstance(found, msgspec.Struct) and isinstance(found, classes):
            continue  # convert would refuse a subclass
        if found is msgspec.UNSET and found is field.default:
            continue  # nor does it know this
        try:
            msgspec.convert(found, field.type)
        except msgspec.ValidationError as error:
            kinds = [k for kind in get_args(field.type) for k in get_args(kind) or [kind]]
            names = (getattr(k, "__name__", repr(k)) for k in kinds or [field.type])
            known = [name if "'" in name else WORDS.get(name, f"{name}(…)") for name in names]
            wanted = " or ".join(name for name in known if name)
            raise InputError(f"{where}{field.name} = {found!r} must be {wanted}") from error


WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
WORDS |= {"NoneType": "", "UnsetType": ""}  # told by leaving it out
_fields = functools.cache(msgspec.structs.fields)  # it evaluates annotations, which takes a while
