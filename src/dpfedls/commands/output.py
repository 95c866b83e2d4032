"""How commands answer: one JSON object or readable text on stdout, progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import typer

from dpfedls.runs.jsonable import plain

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
]


def answer(values: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the result, for a program or for a person."""
    print(json.dumps(plain(values), indent=2, ensure_ascii=False) if as_json else text)


def pairs(values: dict[str, Any], keys: Sequence[str]) -> str:
    """Some of the values, one a line."""
    width = max(len(key) for key in keys)
    return "\n".join(f"{key:<{width}}  {shown(values[key])}" for key in keys)


def shown(value: Any) -> str:
    """A value as a person reads it."""
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.6g}"
    return str(value)


@contextmanager
def progress(total: int, unit: str) -> Iterator[Callable[[int, str], None]]:
    """``advance(done, note)`` moves a bar on a terminal, prints a line now and then elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn(unit),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        with bar:
            task = bar.add_task(unit, total=total, note="")
            yield lambda done, note: bar.update(task, completed=done, note=note)
        return
    began, said = time.perf_counter(), [0, 0.0]

    def advance(done: int, note: str) -> None:
        elapsed = time.perf_counter() - began
        said[0] = said[0] or done - 1  # a resumed run starts in the middle
        if done < total and elapsed - said[1] < 5.0:
            return
        said[1] = elapsed
        left = elapsed / max(done - said[0], 1) * (total - done)
        print(f"{unit} {done}/{total}  {note}  {left:.0f} s left", file=sys.stderr, flush=True)

    yield advance
