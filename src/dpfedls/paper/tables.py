"""Tables 2 to 6, ours beside theirs: as published, and as they should be."""

from __future__ import annotations

import time
from functools import cache, partial
from string import Template
from typing import Any

from dpfedls.errors import InputError
from dpfedls.paper import grids
from dpfedls.paper.cells import Run, run_cells
from dpfedls.paper.figures.lines import by_round, data_of
from dpfedls.paper.grids import Grid, Place
from dpfedls.paper.item import Item, Options, wanted
from dpfedls.paper.writing import averaged, number, over_seeds, percent, table, write_item
from dpfedls.privacy.accountants import AccountantName
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.folder import read_recipe

Cells = list[dict[str, Any]]

ACCOUNTING = {
    "closed-form": "ε by the paper's theorem",
    "paper": "ε by the paper's accounting",
}


def make(item: str, options: Options) -> Item:
    """Run every cell of a table, or read it where it was run before; write what came out."""
    began = time.perf_counter()
    grid = grids.read(item, Grid)
    places = wanted(list(grids.places(item, grid)), lambda place: place[:4], options)
    runs = run_cells([place.cell for place in places], options)
    about = (
        f"Test accuracy in per cent, {averaged(options.seeds)}; the paper's in brackets, the best "
        "of a column bold."
    )
    if options.settings:
        about += " Brackets, and the ε of a column's head, are of the paper's own settings."
    cells = [_facts(*pair, grid.convention) for pair in zip(places, runs, strict=True)]
    return write_item(
        item,
        options,
        title=Template(grid.title).substitute(data=data_of(runs)),
        sections=[
            about,
            *(_section(name, grid, cells) for name in dict.fromkeys(c["variant"] for c in cells)),
        ],
        cells=cells,
        data={"lines": [_line(*pair) for pair in zip(places, runs, strict=True)]},
        runs=runs,
        began=began,
    )


table2, table3, table4, table5, table6 = (partial(make, f"table{n}") for n in range(2, 7))


def _facts(place: Place, runs: list[Run], convention: AccountantName) -> dict[str, Any]:
    """Everything about one number of a table; accuracies are fractions."""
    accuracies = [run.summary["accuracy"] for run in runs]
    average, deviation = over_seeds(accuracies)
    plan = read_recipe(runs[0].folder).plan
    return {
        "variant": place.variant,
        "part": place.part,
        "row": place.row,
        "column": place.column,
        "recipe": place.cell.recipe,
        "settings": list(place.cell.settings),
        "strength": place.values.get("strength"),
        "accuracy_mean": average,
        "accuracy_std": deviation,
        "accuracies": accuracies,
        "seeds": [run.summary["seed"] for run in runs],
        "published": place.published,
        "published_epsilon": place.values["epsilon"],
        "noise_multiplier": plan.noise_multiplier,
        "epsilon_as_published": _epsilon(plan, convention),
        "epsilon_as_added": _epsilon(plan, "pld"),
        "delta": plan.delta,
    }


def _line(place: Place, runs: list[Run]) -> dict[str, Any]:
    """How a cell came to its number."""
    labels = {name: getattr(place, name) for name in ("variant", "part", "row", "column")}
    return labels | by_round(runs, ["test_accuracy"])


@cache  # the rows of a column share their plan
def _epsilon(plan: PrivacyPlan, accountant: AccountantName) -> float | None:
    try:
        return plan.epsilon(accountant)
    except InputError:  # the closed form does not speak about every noise
        return None


def _section(name: str, grid: Grid, cells: Cells) -> str:
    """One variant: its table with noise and ε of every column, and what it comes to."""
    variant, columns = grid.variants[name], _columns([c for c in cells if c["variant"] == name])
    rows = [[cell["row"]] for cell in columns[0]]
    for column in columns:
        best = max(column, key=lambda cell: cell["accuracy_mean"])
        for row, cell in zip(rows, column, strict=True):
            ours = percent(cell["accuracy_mean"], cell["accuracy_std"])
            ours = f"**{ours}**" if cell is best and len(column) > 1 else ours
            row.append(f"{ours} ({percent(cell['published'])})")
    facts = {
        "noise ÷ clip norm": "noise_multiplier",
        ACCOUNTING[grid.convention]: "epsilon_as_published",
        "ε as added (pld)": "epsilon_as_added",
    }
    for label, key in facts.items():
        rows.append([label, *(number(column[0][key]) for column in columns)])
    header = ["", *(f"{column[0]['part']}, {column[0]['column']}" for column in columns)]
    about = f"**{name[0].upper()}{name[1:]}**: {variant.about}."
    return "\n\n".join([about, table(header, rows), *_verdict(columns, variant.paper_noise)])


def _columns(cells: Cells) -> list[Cells]:
    columns: dict[tuple[str, str], Cells] = {}
    for cell in cells:
        columns.setdefault((cell["part"], cell["column"]), []).append(cell)
    return list(columns.values())


def _verdict(columns: list[Cells], paper_noise: bool) -> list[str]:
    """Where a table has DP-Fed: how often smoothing beats it, how near it is to the paper's."""
    plain = [cell for column in columns for cell in column if cell["strength"] == 0]
    if not plain:
        return []
    gains = [100 * _gain(column) for column in columns]
    text = (
        f"The best strength, chosen by these test accuracies, is ahead of no smoothing in "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} columns, by {min(gains):+.2f} to "
        f"{max(gains):+.2f} points."
    )
    if paper_noise:
        far = max(plain, key=lambda cell: abs(cell["accuracy_mean"] - cell["published"]))
        points = 100 * (far["accuracy_mean"] - far["published"])
        text += (
            f" The DP-Fed cell furthest from the paper's ({far['part']}, {far['column']}) is "
            f"{abs(points):.2f} points {'above' if points > 0 else 'below'} it."
        )
    return [text]


def _gain(column: Cells) -> float:
    """How far the best smoothed cell is ahead of the plain one."""
    smoothed = [cell["accuracy_mean"] for cell in column if cell["strength"] > 0]
    plain = next(cell["accuracy_mean"] for cell in column if cell["strength"] == 0)
    return max(smoothed, default=plain) - plain
