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
    asked = wanted(list(grids.places(item, grid)), lambda place: place[:4], options)
    made = zip(asked, run_cells([place.cell for place in asked], options), strict=True)
    made = [(place, runs) for place, runs in made if runs]
    if not made:
        raise InputError(
            f"{options.out}/runs holds no finished run of {item}; leave --finished out to make some"
        )
    runs = [own for _, own in made]
    about = (
        f"Test accuracy in per cent, {_averaged(runs)}; the paper's in brackets, the best of a "
        "column bold."
    )
    if options.settings:
        about += " Brackets, and the ε of a column's head, are of the paper's own settings."
    cells = [_facts(*pair, grid.convention) for pair in made]
    return write_item(
        item,
        options,
        title=Template(grid.title).substitute(data=data_of(runs)),
        sections=[
            about,
            *(_section(name, grid, cells) for name in dict.fromkeys(c["variant"] for c in cells)),
        ],
        cells=cells,
        data={"lines": [_line(*pair) for pair in made]},
        runs=runs,
        began=began,
    )


table2, table3, table4, table5, table6 = (partial(make, f"table{n}") for n in range(2, 7))


def _averaged(runs: list[list[Run]]) -> str:
    counts = sorted({len(own) for own in runs})
    if len(counts) == 1:
        return averaged(counts[0])
    return f"{averaged(counts[-1])}, or fewer where the brackets say so"


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
    most = max(len(cell["seeds"]) for cell in cells)
    rows = [[row] for row in dict.fromkeys(cell["row"] for column in columns for cell in column)]
    for column in columns:
        best = max(map(_mean, column)) if len(column) > 1 else None
        own = {cell["row"]: cell for cell in column}
        for row in rows:
            row.append(_shown(own[row[0]], best, most) if row[0] in own else "–")
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


def _mean(cell: dict[str, Any]) -> float:
    return cell["accuracy_mean"]


def _shown(cell: dict[str, Any], best: float | None, most: int) -> str:
    """Ours beside the paper's; and the seeds, where there are fewer than in other cells."""
    ours = percent(_mean(cell), cell["accuracy_std"])
    ours = f"**{ours}**" if _mean(cell) == best else ours
    seeds = len(cell["seeds"])
    few = f"; {seeds} seed{'s' * (seeds > 1)}" if seeds < most else ""
    return f"{ours} ({percent(cell['published'])}{few})"


def _columns(cells: Cells) -> list[Cells]:
    columns: dict[tuple[str, str], Cells] = {}
    for cell in cells:
        columns.setdefault((cell["part"], cell["column"]), []).append(cell)
    return list(columns.values())


def _verdict(columns: list[Cells], paper_noise: bool) -> list[str]:
    """Where a table has DP-Fed: how often smoothing beats it, how near it is to the paper's."""
    plain = [cell for column in columns for cell in column if cell["strength"] == 0]
    gains = [100 * gain for gain in map(_gain, columns) if gain is not None]
    if not gains:
        return []
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


def _gain(column: Cells) -> float | None:
    """How far the best smoothed cell is ahead of the plain one, where there are both."""
    smoothed = [_mean(cell) for cell in column if cell["strength"]]
    plain = [_mean(cell) for cell in column if cell["strength"] == 0]
    return max(smoothed) - plain[0] if smoothed and plain else None
