"""The table the paper should have had: every method at its own best server rate η_g.

Smoothing also shortens the step, and the paper fixes η_g = 1 for both methods. What is left of the
gain when each may choose its rate is denoising; the rest is only the length of the step.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import product
from statistics import mean
from typing import Any, Literal

import msgspec

from dpfedls.errors import InputError
from dpfedls.paper import grids
from dpfedls.paper.cells import Cell, Run, run_cells
from dpfedls.paper.figures.lines import data_of
from dpfedls.paper.item import Item, Options, wanted
from dpfedls.paper.writing import averaged, number, over_seeds, percent, table, write_item

Cells = list[dict[str, Any]]

RULES = {
    "validation": "by validation accuracy after the last round, averaged over seeds",
    "other seeds": "for each seed by the test accuracy of the others, since the task has no "
    "validation samples",
}


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of grids/server-rates.toml."""

    model: str
    recipe: str
    cases: dict[str, list[str]]
    strengths: list[float]
    rates: list[float]
    settings: list[str] = []
    choose_by: Literal["validation", "other seeds"] = "validation"


def make(task: str, options: Options) -> Item:
    """Run every strength at every rate; choose, and report the test accuracy of what was chosen."""
    began = time.perf_counter()
    grid = grids.read("server-rates", dict[str, Rates])[task]
    if grid.choose_by == "other seeds" and options.seeds < 2:
        raise InputError("a rate is chosen by the other seeds here; give --seeds 2 or more")
    every = list(product(grid.cases, grid.strengths, grid.rates))
    places = wanted(every, _labels, options)
    cases, strengths, rates = (list(dict.fromkeys(axis)) for axis in zip(*places, strict=True))
    if not (0.0 in strengths and 1.0 in rates and min(len(strengths), len(rates)) > 1):
        raise InputError(
            "a gain is the distance between two methods, each of which may choose between the "
            "paper's rate and another; ask for these cells too: --only 'σ = 0', another σ, "
            "--only 'η_g = 1', another η_g"
        )
    runs = run_cells([_cell(grid, *place) for place in places], options)
    cells = [_facts(grid, *pair) for pair in zip(places, runs, strict=True)]
    listed = ", ".join(f"{rate:g}" for rate in rates)
    return write_item(
        f"server-rates-{task}",
        options,
        title="DP-Fed and DP-Fed-LS, each at its best server rate: "
        f"{grid.model} on {data_of(runs)}",
        sections=[
            f"Test accuracy in per cent, {averaged(options.seeds)}. The best η_g, of {listed}, and "
            f"the best strength are chosen {RULES[grid.choose_by]}.",
            *(_section(case, [c for c in cells if c["case"] == case]) for case in cases),
        ],
        cells=cells,
        runs=runs,
        began=began,
    )


mnist, demo, cnn, lstm = (partial(make, task) for task in ("mnist", "demo", "cnn", "lstm"))


def _labels(place: tuple[str, float, float]) -> tuple[str, str, str]:
    case, strength, rate = place
    return case, f"σ = {strength:g}", f"η_g = {rate:g}"


def _cell(grid: Rates, case: str, strength: float, rate: float) -> Cell:
    own = [f"denoiser.strength={strength:g}", f"server_rate={rate:g}"]
    own += ["diagnose=true"] if grid.choose_by == "validation" else []
    return Cell(grid.recipe, (*grid.settings, *grid.cases[case], *own))


def _facts(grid: Rates, place: tuple[str, float, float], runs: list[Run]) -> dict[str, Any]:
    case, strength, rate = place
    accuracies = [run.summary["accuracy"] for run in runs]
    average, deviation = over_seeds(accuracies)
    return {
        "case": case,
        "strength": strength,
        "server_rate": rate,
        "settings": list(_cell(grid, *place).settings),
        "accuracy_mean": average,
        "accuracy_std": deviation,
        "accuracies": accuracies,
        "scores": _scores(grid.choose_by, runs, accuracies),
        "noise_multiplier": runs[0].summary["noise_multiplier"],
        "epsilon": runs[0].summary["epsilon"],
        "delta": runs[0].summary["delta"],
    }


def _scores(choose_by: str, runs: list[Run], accuracies: list[float]) -> list[float]:
    """For each seed, how good the cell looks to whoever chooses for that seed."""
    if choose_by == "other seeds":
        return [mean(accuracies[:s] + accuracies[s + 1 :]) for s in range(len(accuracies))]
    last = [run.diagnostics[-1]["validation_accuracy"] for run in runs]
    if None in last:
        raise InputError(
            f"task {runs[0].summary['task']!r} has no validation samples to choose a rate by, and "
            "chosen by the test it would flatter itself; use a task that has them"
        )
    return [mean(last)] * len(last)


def _section(case: str, cells: Cells) -> str:
    """A line a strength, and how much of the gain is left when everybody may choose a rate."""
    rows = []
    for strength in dict.fromkeys(cell["strength"] for cell in cells):
        own = [cell for cell in cells if cell["strength"] == strength]
        at_one = [cell for cell in own if cell["server_rate"] == 1]
        name = "DP-Fed" if strength == 0 else "DP-Fed-LS"
        rates = sorted({cell["server_rate"] for cell in _chosen(own)})
        shown = ", ".join(f"{rate:g}" for rate in rates)
        shown += " (the end of those tried)" if _at_the_end(cells, strength) else ""
        accuracies = (percent(*over_seeds(_tested(some))) for some in (own, at_one))
        rows.append([f"{name}, σ = {strength:g}", shown, *accuracies])
    header = ["method", "best η_g", "at best η_g", "at η_g = 1"]
    epsilon = f"ε = {number(cells[0]['epsilon'])} (pld), δ = {number(cells[0]['delta'])}"
    return f"**{case}**: {epsilon}.\n\n{table(header, rows)}\n\n{_verdict(cells)}"


def _verdict(cells: Cells) -> str:
    at_one = _gain([cell for cell in cells if cell["server_rate"] == 1])
    at_best = _gain(cells)
    text = (
        f"With its best strength smoothing gains {at_one:+.2f} points at η_g = 1, and "
        f"{at_best:+.2f} where every method has its own best rate: {at_one - at_best:+.2f} come "
        f"from the length of the step, {at_best:+.2f} from smoothing itself, its lower noise and "
        "its bias."
    )
    if any(_at_the_end(cells, strength) for strength in {cell["strength"] for cell in cells}):
        text += " A best rate at the end of those tried may not be the best there is."
    return text


def _at_the_end(cells: Cells, strength: float) -> bool:
    """Whether a rate beyond those tried might have been chosen for this strength."""
    own = [cell for cell in cells if cell["strength"] == strength]
    chosen = {cell["server_rate"] for cell in _chosen(own)}
    return bool(chosen & {own[0]["server_rate"], own[-1]["server_rate"]})


def _gain(cells: Cells) -> float:
    """Points of test accuracy between the best with smoothing and the best without."""
    smoothed = _tested([cell for cell in cells if cell["strength"] > 0])
    plain = _tested([cell for cell in cells if cell["strength"] == 0])
    return 100 * (mean(smoothed) - mean(plain))


def _chosen(cells: Cells) -> list[dict[str, Any]]:
    """For each seed, the cell that looks best."""
    seeds = range(len(cells[0]["accuracies"]))
    return [max(cells, key=lambda cell: cell["scores"][s]) for s in seeds]


def _tested(cells: Cells) -> list[float]:
    """For each seed, the test accuracy of the chosen cell."""
    return [cell["accuracies"][s] for s, cell in enumerate(_chosen(cells))]
