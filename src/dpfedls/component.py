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
        if isinstance(found, msgspec.Struct) and isinstance(found, field.type):
            continue  # convert would refuse a subclass
        try:
            msgspec.convert(found, field.type)
        except msgspec.ValidationError as error:
            kinds = get_args(field.type) or [field.type]
            words = [word for word in kinds if isinstance(word, str)]
            ours = " | ".join(f"{k.__name__}(…)" for k in kinds if hasattr(k, "__struct_fields__"))
            other = str(error).partition(" - at")[0].replace("object", ours)  # msgspec's name
            what = "known: " + ", ".join(words) if words else other
            raise InputError(f"{where}{field.name} = {found!r} is not valid: {what}") from error


_fields = functools.cache(msgspec.structs.fields)  # it evaluates annotations, which takes a while
