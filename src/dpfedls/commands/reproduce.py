"""``dpfedls reproduce``: the paper's tables and figures, ours beside theirs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dpfedls.commands.grids import check_jobs
from dpfedls.commands.output import Json, answer
from dpfedls.errors import InputError
from dpfedls.paper.item import Item, Options, RunsFailed
from dpfedls.paper.items import ITEMS, chosen, make

# An empty line between them keeps typer from making one paragraph of them.
ITEM_LIST = "\n\n".join(f"{name:<20} {title}" for name, (_, title) in ITEMS.items())


def reproduce(
    item: Annotated[str, typer.Argument(help="An item of the list below, or all of them: all.")],
    seeds: Annotated[int, typer.Option(help="Seeds to average over.")] = 3,
    out: Annotated[
        Path, typer.Option(help="Folder for items and runs; runs that are in it are used again.")
    ] = Path("runs/reproduce"),
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    jobs: Annotated[
        int | None,
        typer.Option(
            callback=check_jobs, help="Runs at a time; if absent: as many as cores on cpu, else 1."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override key=value in every recipe: --set plan.rounds=10."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Make only the cells of a table with this label: --only Poisson."),
    ] = None,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished",
            help="Train nothing: the runs in --out so far, and for all others, whatever --only and "
            "--seeds say, what ITEM.json in --out holds.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make a table or figure of the paper, ours beside theirs; a stopped one goes on."""
    names = chosen(item)
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}; the paper averages over 3")
    at_once = ((os.cpu_count() or 1) if device == "cpu" else 1) if jobs is None else jobs
    made: list[Item] = []
    failed: dict[str, Exception] = {}
    with _saying() as say:
        for name in names:
            note = lambda text, name=name: say(f"{name}: {text}")  # noqa: E731
            options = Options(
                out, seeds, device, at_once, tuple(set_ or ()), tuple(only or ()), note, finished
            )
            try:
                made.append(make(name, options))
            except (InputError, RunsFailed) as error:  # must not cost the other items
                failed[name] = error
    if made:
        items = [{"item": m.item, "files": [*map(str, m.files)], "cells": m.cells} for m in made]
        answer({"items": items}, json, "\n".join(str(file) for m in made for file in m.files))
    for name, error in failed.items():
        print(f"dpfedls: {name}: {error}", file=sys.stderr)
    if failed:
        by_input = all(isinstance(error, InputError) for error in failed.values())
        raise typer.Exit(2 if by_input else 1)


@contextmanager
def _saying() -> Iterator[Callable[[str], None]]:
    """The latest news in one place on a terminal, a line each elsewhere."""
    try:
        if sys.stderr.isatty():
            from rich.console import Console

            with Console(stderr=True).status("") as status:
                yield status.update
        else:
            yield lambda text: print(text, file=sys.stderr, flush=True)
    except KeyboardInterrupt as stopped:
        print("dpfedls: stopped; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(1) from stopped
