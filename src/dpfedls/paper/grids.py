"""Tables 2 to 6 as data: the published rows and columns become recipes with settings."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from string import Template
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from dpfedls.paper.cells import Cell
from dpfedls.paper.published import Values, published

T = TypeVar("T")


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a row or a column is called, and what it sets; $names are those of published.toml."""

    label: str
    settings: list[str] = []


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Half of a table: one way of sampling."""

    recipe: str
    settings: list[str] = []


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the noise of a column is chosen."""

    about: str
    settings: list[str]
    paper_noise: bool = False  # the noise of the paper, so that its numbers should come out


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of grids/: how to make a published table."""

    title: str  # $data is what the runs were trained on
    convention: Literal["closed-form", "paper"]  # how the paper computed ε
    row: Axis
    column: Axis
    parts: dict[str, Part]
    variants: dict[str, Variant]
    first: Values = {}  # rows and columns that conclusions hang on: run before the others


class Place(NamedTuple):
    """Where a cell stands in its table, what it is run with, and what the paper has there."""

    variant: str
    part: str
    row: str
    column: str
    values: dict[str, Any]  # of its row and column, by name
    cell: Cell
    published: float  # a fraction, as our accuracies are


def read(name: str, kind: type[T]) -> T:
    """A file of grids/ as that type."""
    path = resources.files("dpfedls.paper").joinpath("grids", f"{name}.toml")
    return msgspec.toml.decode(path.read_bytes(), type=kind)


def places(item: str, grid: Grid) -> Iterator[Place]:
    """Every cell of a table, variant by variant, in the order of the paper."""
    table = published().tables[item]
    for name, variant in grid.variants.items():
        for part_name, part in grid.parts.items():
            theirs = table.parts[part_name]
            for i, row in enumerate(_each(table.rows)):
                for j, column in enumerate(_each(theirs.columns)):
                    values = row | column
                    axes = [*grid.row.settings, *grid.column.settings, *variant.settings]
                    settings = [*part.settings, *(_filled(text, values) for text in axes)]
                    yield Place(
                        name,
                        part_name,
                        _filled(grid.row.label, values),
                        _filled(grid.column.label, values),
                        values,
                        Cell(part.recipe, tuple(settings), _rank(grid, values)),
                        round(theirs.accuracy[i][j] / 100, 6),
                    )


def _rank(grid: Grid, values: dict[str, Any]) -> int:
    return int(any(values[name] not in first for name, first in grid.first.items()))


def _each(values: Values) -> Iterator[dict[str, Any]]:
    """One dictionary a row or column."""
    for column in zip(*values.values(), strict=True):
        yield dict(zip(values, column, strict=True))


def _filled(text: str, values: dict[str, Any]) -> str:
    shown = {k: v if isinstance(v, str) else f"{v:g}" for k, v in values.items()}
    return Template(text).substitute(shown)
