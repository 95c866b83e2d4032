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
from dpfedls.paper.cells import Run, read_run
from dpfedls.paper.figures.lines import data_of
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


Seeds = dict[int, Run]


def make(options: Options) -> Item:
    """Item ``svhn-cells``: nothing is trained."""
    began = time.perf_counter()
    found = collect(options.out / "runs")
    if not found:
        raise InputError(
            f"{options.out}/runs holds no finished run of {TASK}, so there is nothing to list; "
            "make some first: dpfedls reproduce table3 --device cuda"
        )
    runs = [list(seeds.values()) for seeds in found.values()]
    return write_item(
        "svhn-cells",
        options,
        title=f"Every cell that was run, and each method at its best: CNN on {data_of(runs)}",
        sections=[
            "Test accuracy in per cent after the last round, mean ± standard deviation over the "
            "seeds that a cell has. A falling η_g goes linearly to zero.",
            _listed(found),
            "**Each method at its own best server rate**, chosen by validation accuracy over the "
            "seeds that a cell has, their number in brackets. Bold: the best of a line by "
            "validation.",
            _fair(found),
        ],
        cells=[_facts(place, seeds) for place, seeds in found.items()],
        runs=runs,
        began=began,
    )


def collect(folder: Path) -> dict[Place, Seeds]:
    """The finished runs of the task in a folder of run folders, by place and seed."""
    found: dict[Place, Seeds] = defaultdict(dict)
    for path in sorted(folder.glob("*/privacy.json")):
        recipe = read_recipe(path.parent)
        place = _place(recipe)
        if place is not None and is_finished(path.parent):
            found[place][recipe.seed] = read_run(path.parent)
    return {place: dict(sorted(found[place].items())) for place in sorted(found)}


def _place(recipe: Recipe) -> Place | None:
    if recipe.task != TASK or not isinstance(recipe.denoiser, LaplacianSmoothing):
        return None
    if not isinstance(recipe.server_rate, float) or recipe.denoiser.order != ORDER:
        return None
    sampling = "Poisson" if isinstance(recipe.plan.sampler, PoissonSampling) else "uniform"
    noise = recipe.plan.noise_multiplier or 0.0
    strength, rate = recipe.denoiser.strength, recipe.server_rate
    return Place(sampling, noise, strength, rate, recipe.schedule, recipe.plan.clipping.start)


def _tested(run: Run) -> float:
    return run.summary["accuracy"]


def _validated(run: Run) -> float:
    return run.diagnostics[-1]["validation_accuracy"]


def _facts(place: Place, seeds: Seeds) -> dict[str, Any]:
    return place._asdict() | {
        "accuracy_by_seed": {seed: _tested(run) for seed, run in seeds.items()},
        "validation_by_seed": {seed: _validated(run) for seed, run in seeds.items()},
        "epsilon": next(iter(seeds.values())).summary["epsilon"],
    }


def _rate(place: Place) -> str:
    return f"{place.server_rate:g}{', falling' if place.schedule == 'linear' else ''}"


def _noise(place: Place) -> str:
    return f"{place.noise_multiplier:g}{', no clip norm' if place.clip_norm == math.inf else ''}"


def _listed(found: dict[Place, Seeds]) -> str:
    rows = [
        [
            *(place.sampling, _noise(place), f"{place.strength:g}", _rate(place)),
            str(len(seeds)),
            percent(*over_seeds([_tested(run) for run in seeds.values()])),
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


def _score(runs: Seeds) -> float:
    return mean(map(_validated, runs.values()))


def _shown(place: Place | None, own: dict[Place, Seeds], bold: bool) -> str:
    if place is None:
        return "–"
    like = (place.strength, place.schedule)
    tried = [p.server_rate for p in own if (p.strength, p.schedule) == like]
    end = " (the end of those tried)" if place.server_rate in (min(tried), max(tried)) else ""
    value = percent(*over_seeds([_tested(run) for run in own[place].values()]))
    value = f"**{value}**" if bold else value
    return f"{value} ({len(own[place])}) at {place.server_rate:g}{end}"
