"""The two files of a table: raw JSON, and a section of Markdown that says how it was made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from dpfedls.paper.cells import Run
from dpfedls.paper.item import Item, Options
from dpfedls.paper.provenance import page, provenance
from dpfedls.privacy.durable import write_whole
from dpfedls.runs.jsonable import plain

if TYPE_CHECKING:
    from dpfedls.paper.kept import Earlier


def write_item(
    item: str,
    options: Options,
    *,
    title: str,
    sections: list[str],
    cells: list[dict[str, Any]],
    data: dict[str, Any] | None = None,
    runs: Sequence[Sequence[Run]] = (),
    earlier: Earlier | None = None,
    began: float,
) -> Item:
    """Write ITEM.json and ITEM.md."""
    options.out.mkdir(parents=True, exist_ok=True)
    facts = provenance(options, item, began, runs, earlier) | {"title": title, "cells": cells}
    facts |= {"data": data} if data else {}
    text = page(facts, sections)
    files = [options.out / f"{item}.json", options.out / f"{item}.md"]
    write_whole(files[0], json.dumps(plain(facts), indent=1, ensure_ascii=False).encode())
    write_whole(files[1], text.encode())
    return Item(item, files, cells)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def over_seeds(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation; one seed has none."""
    return mean(values), stdev(values) if len(values) > 1 else None


def averaged(seeds: int) -> str:
    """What the numbers of a table are."""
    return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"


def percent(average: float, deviation: float | None = None) -> str:
    """An accuracy in per cent."""
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return f"{100 * average:.2f}{spread}"


def number(value: float | None) -> str:
    """Four digits, or a dash."""
    return "–" if value is None else f"{value:.4g}"
