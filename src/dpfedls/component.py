"""The base of everything a recipe can name: a frozen value that is its own configuration."""

from __future__ import annotations

import functools
from typing import get_args

import msgspec

from dpfedls.errors import InputError


class Component(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """A frozen, comparable value; in TOML a table whose ``kind`` names the class."""


def check_types(value: msgspec.Struct, where: str) -> None:
    """Refuse fields of another type than declared: msgspec checks what it decodes, not Python's."""
    for field in _fields(type(value)):
        found = getattr(value, field.name)
        if isinstance(found, msgspec.Struct) and isinstance(found, field.type):
            continue  # convert would refuse a subclass
        try:
            msgspec.convert(found, field.type)
        except msgspec.ValidationError as error:
            words = [word for word in get_args(field.type) if isinstance(word, str)]
            what = "known: " + ", ".join(words) if words else str(error).partition(" - at")[0]
            raise InputError(f"{where}{field.name} = {found!r} will not do: {what}") from error


_fields = functools.cache(msgspec.structs.fields)  # it evaluates annotations, which takes a while
