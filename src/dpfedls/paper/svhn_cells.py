"""Every finished run of the CNN on SVHN, whichever item it was made for; each method at its best.

A grid can be cut short, and rates tried for one method only: this lists what there is.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from dpfedls.denoisers import LaplacianSmoothing
from dpfedls.errors import InputError
from dpfedls.paper import kept
from dpfedls.paper.cells import Run, read_run
from dpfedls.paper.figures.lines import by_round, seeds_of
from dpfedls.paper.item import Item, Options
from dpfedls.paper.writing import over_seeds, percent, table, write_item
from dpfedls.runs.folder import read_recipe
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.seal import is_finished
from dpfedls.sampling import PoissonSampling

TASK = "svhn-cnn"
ORDER = "BCWH"  # of kernels, the recipe's; others are Table 5's


class Place(NamedTuple):
    """What cells differ in."""

    sampling: str
    noise_multiplier: float
    strength: float
    server_rate: float
    schedule: str
    clip_norm: float


class Seeds(NamedTuple):
    """What a cell came to, by seed."""

    tested: list[float]
    validated: list[float]


def make(options: Options) -> Item:
    """Item ``svhn-cells``: nothing is trained."""
    began = time.perf_counter()
    runs = collect(options.out / "runs")
    if not runs and not options.finished:
        raise InputError(
            f"{options.out}/runs holds no finished run of {TASK}, so there is nothing to list; "
            "make some first: dpfedls reproduce table3 --device cuda"
        )
    record = kept.record(
        "svhn-cells",
        options,
        [(_facts(place, own), own) for place, own in runs.items()],
        labels=Place._fields,
        by_seed=Seeds._fields,
        read=_earlier,
    )
    found = {
        Place(*(line[name] for name in Place._fields)): Seeds(line["tested"], line["validated"])
        for line in record.lines
    }
    return write_item(
        "svhn-cells",
        options,
        title=record.title("Every cell that was run, and each method at its best: CNN on $data"),
        sections=[
            "Test accuracy in per cent after the last round, mean ± standard deviation over the "
            "seeds that a cell has. A falling η_g goes linearly to zero.",
            _listed(found),
            "**Each method at its own best server rate**, chosen by validation accuracy over the "
            "seeds that a cell has, their number in brackets. Bold: the best of a line by "
            "validation.",
            _fair(found),
        ],
        cells=[_written(line) for line in record.lines],
        runs=record.runs,
        earlier=record.earlier,
        began=began,
    )


def collect(folder: Path) -> dict[Place, list[Run]]:
    """The finished runs of the task in a folder of run folders, by place, in order of seeds."""
    found: dict[Place, dict[int, Run]] = defaultdict(dict)
    for path in sorted(folder.glob("*/privacy.json")):
        recipe = read_recipe(path.parent)
        place = _place(recipe)
        if place is not None and is_finished(path.parent):
            found[place][recipe.seed] = read_run(path.parent)
    return {place: [found[place][k] for k in sorted(found[place])] for place in sorted(found)}


def _place(recipe: Recipe) -> Place | None:
    if recipe.task != TASK or not isinstance(recipe.denoiser, LaplacianSmoothing):
        return None
    if not isinstance(recipe.server_rate, float) or recipe.denoiser.order != ORDER:
        return None
    sampling = "Poisson" if isinstance(recipe.plan.sampler, PoissonSampling) else "uniform"
    noise = recipe.plan.noise_multiplier or 0.0
    strength, rate = recipe.denoiser.strength, recipe.server_rate
    return Place(sampling, noise, strength, rate, recipe.schedule, recipe.plan.clipping.start)


def _facts(place: Place, runs: list[Run]) -> dict[str, Any]:
    validated = by_round(runs, ["validation_accuracy"])["validation_accuracy"]
    return place._asdict() | {
        "seeds": seeds_of(runs),
        "tested": [run.summary["accuracy"] for run in runs],
        "validated": [curve[-1] for curve in validated],
        "epsilon": runs[0].summary["epsilon"],
    }


def _written(line: dict[str, Any]) -> dict[str, Any]:
    """A cell of the file: its numbers under their seeds."""
    return {name: line[name] for name in Place._fields} | {
        "accuracy_by_seed": dict(zip(line["seeds"], line["tested"], strict=True)),
        "validation_by_seed": dict(zip(line["seeds"], line["validated"], strict=True)),
        "epsilon": line["epsilon"],
    }


def _earlier(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells of a file as ``_facts`` has them; JSON has neither infinity nor numbers as keys."""
    return [
        cell
        | {
            "clip_norm": math.inf if cell["clip_norm"] is None else cell["clip_norm"],
            "seeds": [int(seed) for seed in cell["accuracy_by_seed"]],
            "tested": [*cell["accuracy_by_seed"].values()],
            "validated": [cell["validation_by_seed"][seed] for seed in cell["accuracy_by_seed"]],
        }
        for cell in facts["cells"]
    ]


def _rate(place: Place) -> str:
    return f"{place.server_rate:g}{', falling' if place.schedule == 'linear' else ''}"


def _noise(place: Place) -> str:
    return f"{place.noise_multiplier:g}{', no clip norm' if place.clip_norm == math.inf else ''}"


def _listed(found: dict[Place, Seeds]) -> str:
    rows = [
        [
            *(place.sampling, _noise(place), f"{place.strength:g}", _rate(place)),
            str(len(seeds.tested)),
            percent(*over_seeds(seeds.tested)),
        ]
        for place, seeds in found.items()
    ]
    return table(["sampling", "z", "σ", "η_g", "seeds", "test accuracy"], rows)


def _fair(found: dict[Place, Seeds]) -> str:
    """A line a sampling and noise: the best of each method, constant and falling."""
    columns = [(s, schedule) for schedule in ("constant", "linear") for s in (0.0, 1.0)]
    rows = []
    for sampling, noise in dict.fromkeys((p.sampling, p.noise_multiplier) for p in found):
        own = {p: seeds for p, seeds in found.items() if p[:2] == (sampling, noise)}
        if len({(p.server_rate, p.schedule) for p in own}) < 2:  # no rate to choose
            continue
        best = [_best(own, *column) for column in columns]
        top = max((place for place in best if place), key=lambda p: _score(own[p]))
        shown = [_shown(place, own, bold=place == top) for place in best]
        rows.append([sampling, f"{noise:g}", *shown])
    names = ("DP-Fed", "DP-Fed-LS, σ = 1", "DP-Fed, falling", "DP-Fed-LS, falling")
    return table(["sampling", "z", *names], rows)


def _best(own: dict[Place, Seeds], strength: float, schedule: str) -> Place | None:
    mine = [p for p in own if (p.strength, p.schedule) == (strength, schedule)]
    return max(mine, key=lambda place: _score(own[place]), default=None)


def _score(seeds: Seeds) -> float:
    return mean(seeds.validated)


def _shown(place: Place | None, own: dict[Place, Seeds], bold: bool) -> str:
    if place is None:
        return "–"
    like = (place.strength, place.schedule)
    tried = [p.server_rate for p in own if (p.strength, p.schedule) == like]
    end = " (the end of those tried)" if place.server_rate in (min(tried), max(tried)) else ""
    value = percent(*over_seeds(own[place].tested))
    value = f"**{value}**" if bold else value
    return f"{value} ({len(own[place].tested)}) at {place.server_rate:g}{end}"
