"""Settings that the paper tunes, leaves open, or allows and does not measure: one at a time."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec

from dpfedls.errors import InputError
from dpfedls.paper import grids
from dpfedls.paper.cells import Cell, Run, run_cells
from dpfedls.paper.figures.lines import data_of
from dpfedls.paper.item import Item, Options, wanted
from dpfedls.paper.writing import averaged, over_seeds, percent, table, write_item


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting: what the paper says about it, and what is set in each row."""

    about: str
    rows: dict[str, list[str]]


class Choices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of grids/choices.toml."""

    model: str
    recipe: str
    settings: list[str]
    strengths: list[float]
    groups: dict[str, Group]


def make(task: str, options: Options) -> Item:
    """Run every row of every group with and without smoothing."""
    began = time.perf_counter()
    grid = grids.read("choices", dict[str, Choices])[task]
    every = [
        (group, row, strength)
        for group, content in grid.groups.items()
        for row in content.rows
        for strength in grid.strengths
    ]
    places = wanted(every, lambda place: (place[0], place[1], f"σ = {place[2]:g}"), options)
    runs = run_cells([_cell(grid, *place) for place in places], options)
    cells = [_facts(grid, place, own) for place, own in zip(places, runs, strict=True)]
    groups = dict.fromkeys(group for group, _, _ in places)
    return write_item(
        f"choices-{task}",
        options,
        title=f"One setting at a time: {grid.model} on {data_of(runs)}",
        sections=[
            f"Accuracy in per cent, {averaged(options.seeds)}: validation, then test.",
            *(_section(group, grid, [c for c in cells if c["group"] == group]) for group in groups),
        ],
        cells=cells,
        runs=runs,
        began=began,
    )


mnist = partial(make, "mnist")


def _cell(grid: Choices, group: str, row: str, strength: float) -> Cell:
    own = grid.groups[group].rows[row]
    return Cell(grid.recipe, (*grid.settings, f"denoiser.strength={strength:g}", *own))


def _facts(grid: Choices, place: tuple[str, str, float], runs: list[Run]) -> dict[str, Any]:
    group, row, strength = place
    tested = [run.summary["accuracy"] for run in runs]
    validated = [run.diagnostics[-1]["validation_accuracy"] for run in runs]
    if None in validated:
        raise InputError(
            f"task {runs[0].summary['task']!r} has no validation samples, and settings chosen by "
            "the test would flatter themselves; use a task that has them"
        )
    average, deviation = over_seeds(tested)
    validation, spread = over_seeds(validated)
    return {
        "group": group,
        "row": row,
        "strength": strength,
        "recipe": grid.recipe,
        "settings": list(_cell(grid, *place).settings),
        "accuracy_mean": average,
        "accuracy_std": deviation,
        "accuracies": tested,
        "validation_mean": validation,
        "validation_std": spread,
        "validations": validated,
        "epsilon": runs[0].summary["epsilon"],
        "noise_multiplier": runs[0].summary["noise_multiplier"],
    }


def _section(name: str, grid: Choices, cells: list[dict[str, Any]]) -> str:
    """A line a row; the best of a column by validation accuracy is bold."""
    strengths = list(dict.fromkeys(cell["strength"] for cell in cells))
    best = [
        max((c for c in cells if c["strength"] == s), key=lambda cell: cell["validation_mean"])
        for s in strengths
    ]
    rows = []
    for label in dict.fromkeys(cell["row"] for cell in cells):
        shown = [label]
        for cell in (c for c in cells if c["row"] == label):
            seen = percent(cell["validation_mean"], cell["validation_std"])
            seen = f"**{seen}**" if cell in best else seen
            shown += [seen, percent(cell["accuracy_mean"], cell["accuracy_std"])]
        rows.append(shown)
    header = [name]
    for strength in strengths:
        header += [f"σ = {strength:g}, validation", "test"]
    about = grid.groups[name].about
    return f"**{name[0].upper()}{name[1:]}**: {about}.\n\n{table(header, rows)}"
