"""An item is a table or figure of the paper: files to look at, and cells of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpfedls.errors import unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How to make items: where, over how many seeds, on what, and how much at once."""

    out: Path  # one folder for all items; runs that several of them need are made once
    seeds: int = 3
    device: str = "cpu"
    jobs: int = 1  # runs at the same time
    settings: tuple[str, ...] = ()  # key=value that override every recipe: a smaller trial, said so
    only: tuple[str, ...] = ()  # labels of the cells wanted; without any, all of them
    say: Callable[[str], None] = lambda _: None
    finished: bool = False  # train nothing: the runs that are there, and the earlier ITEM.json


def trained_with(settings: Sequence[str]) -> list[str]:
    """Those that change what is trained: how often it is evaluated does not."""
    return [setting for setting in settings if not setting.startswith("evaluate_every=")]


def wanted(cells: Sequence[T], labels: Callable[[T], tuple[str, ...]], options: Options) -> list[T]:
    """The cells that ``options.only`` asks for.

    A cell has one label an axis; where labels of an axis are asked for, it must have one of those.
    """
    axes = [set(axis) for axis in zip(*map(labels, cells), strict=True)]
    for label in options.only:
        if not any(label in axis for axis in axes):
            raise unknown("label", label, [known for axis in axes for known in sorted(axis)])
    asked = [axis & set(options.only) or axis for axis in axes]
    return [c for c in cells if all(x in a for x, a in zip(labels(c), asked, strict=True))]


@dataclass(frozen=True)
class Item:
    """What ``dpfedls reproduce`` made."""

    item: str
    files: list[Path]
    cells: list[dict[str, Any]]


class RunsFailed(RuntimeError):
    """Some runs of an item failed; all others are finished and kept. Exit code 1."""


Maker = Callable[[Options], Item]
