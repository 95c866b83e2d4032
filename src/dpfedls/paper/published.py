"""The paper's own numbers, read from published.toml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TypeAlias

import msgspec

Values: TypeAlias = dict[str, list[float | str]]  # what a row or column is, by name


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Half of a table: one way of sampling."""

    columns: Values
    accuracy: list[list[float]]  # per cent, a list a row


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of Tables 2 to 6."""

    rows: Values
    parts: dict[str, Part]


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fitted line in a figure with logarithmic axes."""

    slope: float
    intercept: float


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    tables: dict[str, Table]
    lines: dict[str, Line]


@cache
def published() -> Published:
    """Every published number."""
    path = resources.files("dpfedls.paper").joinpath("published.toml")
    return msgspec.toml.decode(path.read_bytes(), type=Published)
