"""An item is a table or figure of the paper; making one yields files to look at and cells of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """How to make items: where, over how many seeds, on what, and how much at once."""

    out: Path  # one folder for all items; runs that several of them need are made once
    seeds: int = 3
    device: str = "cpu"
    jobs: int = 1  # runs at the same time
    settings: tuple[str, ...] = ()  # key=value laid over every recipe: a smaller trial, said so
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Item:
    """What ``dpfedls reproduce`` made."""

    item: str
    files: list[Path]
    cells: list[dict[str, Any]]


Maker = Callable[[Options], Item]
