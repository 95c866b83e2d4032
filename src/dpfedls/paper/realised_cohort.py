"""Algorithm 1's own denominator |S_t|, how many happened to take part: NOT private.

That number depends on who took part, and it scales the noise that everybody sees. So no recipe can
ask for it and no run folder, ledger or statement comes of it: what is made here are accuracies, to
set beside those of Table 2's Poisson columns.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from dpfedls.metrics import evaluate
from dpfedls.paper import grids
from dpfedls.paper.cells import resolve, run_cells
from dpfedls.paper.figures.lines import data_of
from dpfedls.paper.grids import Grid, Place
from dpfedls.paper.item import Item, Options, wanted
from dpfedls.paper.writing import averaged, over_seeds, percent, table, write_item
from dpfedls.randomness import SeededStreams
from dpfedls.runs.recipe import Recipe, built
from dpfedls.runs.simulate import prepare
from dpfedls.tasks.task import make_task


def make(options: Options) -> Item:
    """Item ``realised-cohort``: Table 2's Poisson cells at σ 0 and 1, divided both ways."""
    began = time.perf_counter()
    every = [p for p in grids.places("table2", grids.read("table2", Grid)) if _is_shown(p)]
    places = wanted(every, lambda place: (place.row, place.column), options)
    private = run_cells([place.cell for place in places], options)
    cells = []
    for place, runs in zip(places, private, strict=True):
        options.say(f"by the realised cohort: {place.column}, {place.row}")
        recipes = (resolve(place.cell, seed, options) for seed in range(options.seeds))
        found = [accuracy(recipe.resolved()) for recipe in recipes]
        cells.append(_facts(place, [run.summary["accuracy"] for run in runs], found))
    return write_item(
        "realised-cohort",
        options,
        title="Algorithm 1's own denominator, which is NOT private: logistic regression on "
        + data_of(private),
        sections=[
            f"Test accuracy in per cent, {averaged(options.seeds)}. Poisson sampling, noise of "
            "Theorem 2. We divide the noisy sum by the public expected cohort; Algorithm 1 "
            "(S ← |S_t|) and the authors' code divide by how many took part, which is private, and "
            "a small cohort then blows the noise up.",
            _table(cells),
        ],
        cells=cells,
        runs=private,
        began=began,
    )


def accuracy(recipe: Recipe) -> float:
    """Test accuracy of a recipe after its last round, divided by who took part: NOT private."""
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    simulation, model = prepare(recipe, task, built(recipe.denoiser))
    server, plan = simulation.server, recipe.plan
    state = server.start(server.layout.read(model))
    for t in range(plan.rounds):
        cohort = plan.sampler.sample(plan.num_clients, simulation.streams.sampling(t))
        # The release is divided by the expected cohort; a rate by who took part undoes that.
        assert isinstance(server.rate, float)  # the paper's is a number
        rate = server.rate * plan.expected_cohort / max(1, len(cohort))
        state = replace(simulation, server=replace(server, rate=rate)).run_round(state)
    server.layout.write(state.average, model)
    assert task.test is not None
    return evaluate(model, task.test, task.loss, task.metrics)["accuracy"]


def _is_shown(place: Place) -> bool:
    sampled = place.variant == "as published" and place.part == "Poisson"
    return sampled and place.values["strength"] in (0.0, 1.0)


def _facts(place: Place, expected: list[float], realised: list[float]) -> dict[str, Any]:
    labels = {name: getattr(place, name) for name in ("variant", "part", "row", "column")}
    facts: dict[str, Any] = {**labels, "settings": list(place.cell.settings)}
    for name, found in (("by_expected", expected), ("by_realised", realised)):
        average, deviation = over_seeds(found)
        facts |= {f"{name}_mean": average, f"{name}_std": deviation, name: found}
    return facts | {"published": place.published}


def _table(cells: list[dict[str, Any]]) -> str:
    rows = [
        [
            cell["column"],
            cell["row"],
            percent(cell["by_expected_mean"], cell["by_expected_std"]),
            percent(cell["by_realised_mean"], cell["by_realised_std"]),
            percent(cell["published"]),
        ]
        for cell in cells
    ]
    return table(["ε", "σ", "by expected cohort", "by realised cohort, NOT private", "paper"], rows)
