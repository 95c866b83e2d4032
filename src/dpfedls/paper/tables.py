"""Tables 2 to 6, ours beside theirs: as published, and as they should be."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import Any

from dpfedls.errors import InputError
from dpfedls.paper import grids, kept
from dpfedls.paper.cells import Run, run_cells
from dpfedls.paper.figures.lines import by_round
from dpfedls.paper.grids import Grid, Place
from dpfedls.paper.item import Item, Options, trained_with, wanted
from dpfedls.paper.writing import averaged, number, over_seeds, percent, table, write_item
from dpfedls.privacy.accountants import AccountantName
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.folder import read_recipe

Cells = list[dict[str, Any]]

LABELS = ("variant", "part", "row", "column")
CURVE = ("rounds", "test_accuracy")  # how a cell came to its number, a list a seed

ACCOUNTING = {
    "closed-form": "ε by the paper's theorem",
    "paper": "ε by the paper's accounting",
}


def make(item: str, options: Options) -> Item:
    """Run every cell of a table, or read it where it was run before; write what came out."""
    began = time.perf_counter()
    grid = grids.read(item, Grid)
    places = list(grids.places(item, grid))
    asked = wanted(places, lambda place: place[:4], options)
    runs = run_cells([place.cell for place in asked], options)
    made = zip(asked, runs, strict=True)
    record = kept.record(
        item,
        options,
        [(_facts(place, own, grid.convention), own) for place, own in made if own],
        labels=LABELS,
        by_seed=("accuracies", *CURVE),
        places=[place[:4] for place in places],
        read=partial(_earlier, places),
        compared=False,  # only last rounds stand in a table
    )
    cells = [_over_seeds(line) for line in record.lines]
    rows = list(dict.fromkeys(place.row for place in places))
    about = (
        f"Test accuracy in per cent, {_averaged(cells)}; the paper's in brackets, the best of a "
        "column bold."
    )
    if trained_with(options.settings):
        about += " Brackets, and the ε of a column's head, are of the paper's own settings."
    return write_item(
        item,
        options,
        title=record.title(grid.title),
        sections=[
            about,
            *(
                _section(name, grid, cells, rows)
                for name in dict.fromkeys(cell["variant"] for cell in cells)
            ),
        ],
        cells=cells,
        data={"lines": [{k: line[k] for k in (*LABELS, *CURVE)} for line in record.lines]},
        runs=record.runs,
        earlier=record.earlier,
        began=began,
    )


table2, table3, table4, table5, table6 = (partial(make, f"table{n}") for n in range(2, 7))


def _averaged(cells: Cells) -> str:
    counts = sorted({len(cell["seeds"]) for cell in cells})
    if len(counts) == 1:
        return averaged(counts[0])
    return f"{averaged(counts[-1])}, or fewer where the brackets say so"


def _facts(place: Place, runs: list[Run], convention: AccountantName) -> dict[str, Any]:
    """All about one number of a table, and how it came to it; accuracies are fractions."""
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
        **_curves(runs),
    }


def _curves(runs: list[Run]) -> dict[str, Any]:
    """Each seed in the rounds in which it was evaluated, which need not be those of the others."""
    each = [by_round([run], ["test_accuracy"]) for run in runs]
    return {
        "rounds": [curve["rounds"] for curve in each],
        "test_accuracy": [curve["test_accuracy"][0] for curve in each],
    }


def _earlier(places: list[Place], facts: dict[str, Any]) -> Cells:
    """Cells of an earlier file with their curves, if they were made by the recipes of today."""
    cells = {place[:4]: place.cell for place in places}
    lines = facts["data"]["lines"]
    found = [cell | line for cell, line in zip(facts["cells"], lines, strict=True)]
    for fact in found:
        cell = cells.get(tuple(fact[name] for name in LABELS))
        if cell and (cell.recipe, list(cell.settings)) != (fact["recipe"], fact["settings"]):
            raise InputError(
                f"{facts['item']}.json has {fact['part']}, {fact['column']}, {fact['row']} by "
                f"{fact['recipe']} {' '.join(fact['settings'])}, which today is {cell.recipe} "
                f"{' '.join(cell.settings)}: the two do not belong together; give another --out"
            )
    return found


def _over_seeds(line: dict[str, Any]) -> dict[str, Any]:
    """A cell without its curve, averaged over the seeds that it has."""
    average, deviation = over_seeds(line["accuracies"])
    cell = {name: value for name, value in line.items() if name not in CURVE}
    return cell | {"accuracy_mean": average, "accuracy_std": deviation}


@cache  # the rows of a column share their plan
def _epsilon(plan: PrivacyPlan, accountant: AccountantName) -> float | None:
    try:
        return plan.epsilon(accountant)
    except InputError:  # the closed form does not speak about every noise
        return None


def _section(name: str, grid: Grid, cells: Cells, order: list[str]) -> str:
    """One variant: its table with noise and ε of every column, and what it comes to."""
    variant, columns = grid.variants[name], _columns([c for c in cells if c["variant"] == name])
    most = max(len(cell["seeds"]) for cell in cells)
    shown = {cell["row"] for column in columns for cell in column}
    rows = [[row] for row in order if row in shown]
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
