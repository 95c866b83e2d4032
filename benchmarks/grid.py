"""ε alone beside the best setting of a wide grid at the same (ε, δ).

    python benchmarks/grid.py digits-logistic --epsilon 1     searches, checks, prints the table
    python benchmarks/grid.py table                           the table of docs/results/beyond.md

The search begins at two settings and changes one after another as long as that helps. It chooses by
the validation samples, or where a task has none by the test samples of seeds that are not shown.
The best few are run again with other seeds, on test samples, and so is ε alone: no luck is counted.
Every run is a line of docs/results/grid.jsonl: stop it and go on at will. With --jobs N so many
runs are made at a time, on a GPU say; the search then tries all neighbours of a point first.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace as changed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import beyond_rows
from msgspec.structs import replace

from dpfedls.auto.planner import MOST_RATE
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs.fitting import ready
from dpfedls.runs.recipe import built
from dpfedls.runs.simulate import simulate
from dpfedls.tasks.task import make_task

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "grid.jsonl"
GRID: dict[str, tuple[Any, ...]] = {
    "noise": (0.04, 0.08, 0.16, 0.32),
    "learning_rate": (0.02, 0.05, 0.1, 0.2),
    "steps": (10, 25, 50),
    "rounds": (100, 200, 400),
    "cohort": (25, 50, 100),
    "smoothing": ("adaptive", "off", "1", "3"),
    "schedule": ("root", "linear", "constant", "averaged"),
}
STARTS: tuple[dict[str, Any], ...] = (
    {"noise": 0.08, "learning_rate": 0.05, "steps": 25, "rounds": 100, "cohort": 50},
    {"noise": 0.16, "learning_rate": 0.1, "steps": 10, "rounds": 200, "cohort": 50},
)
REST = {"smoothing": "adaptive", "schedule": "root"}
ALONE: dict[str, Any] = {}  # nothing but ε
FRESH = 100  # the first seed of the check; the search has 0, 1, …
Settings = dict[str, Any]


def recipe_of(task: str, epsilon: float, settings: Settings) -> recipes.Recipe:
    """The recipe of a point of the grid, calibrated; of no settings at all, that of ε alone."""
    if settings == ALONE:
        return beyond_rows.automatic(task, epsilon).resolved()
    people = beyond_rows.paper(task, epsilon, 0.0).plan.num_clients
    kind = {"adaptive": "adaptive-laplacian", "off": "identity"}.get(settings["smoothing"])
    fixed = {"kind": "laplacian", "strength": settings["smoothing"]}
    rounds, averaged = settings["rounds"], settings["schedule"] == "averaged"
    schedule = "constant" if averaged else settings["schedule"]
    return beyond_rows.automatic(
        task,
        epsilon,
        plan={
            "num_clients": people,
            "rounds": rounds,
            "clip_norm": {"kind": "adaptive"},
            "sampler": {"kind": "poisson", "rate": settings["cohort"] / people},
        },
        local={"steps": settings["steps"], "learning_rate": settings["learning_rate"]},
        server_rate={
            "kind": "noise",
            "noise": settings["noise"],
            "at_most": MOST_RATE[schedule],
        },
        schedule=schedule,
        averaging=1 - 10 / rounds if averaged else 0.0,
        denoiser={"kind": kind} if kind else fixed | {"strength": float(settings["smoothing"])},
    ).resolved()


@functools.cache
def _calibrated(task: str, epsilon: float, settings: str) -> recipes.Recipe:
    """For all seeds at once: the noise of a plan takes longer to find than a short run."""
    return recipe_of(task, epsilon, json.loads(settings))


def trained(
    task: str, epsilon: float, settings: Settings, seed: int, device: str
) -> dict[str, Any]:
    """One run: accuracy on the validation samples for the search, on the test samples after it."""
    recipe = replace(_calibrated(task, epsilon, json.dumps(settings)), seed=seed, device=device)
    made = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(seed))
    recipe = ready(recipe, made)  # ε alone is given the test inputs, as in the other tables
    # A task trains in the precision of its recipe, whoever chooses the rest.
    precision = beyond_rows.paper(task, epsilon, 0.0).local.precision
    recipe = replace(recipe, local=replace(recipe.local, precision=precision))
    if seed < FRESH and made.validation is not None:
        made = changed(made, test=made.validation)
    start = time.process_time()
    accuracy = simulate(recipe, made, built(recipe.denoiser), None).accuracy
    row = {"task": task, "epsilon": epsilon, "settings": settings, "seed": seed}
    return row | {"accuracy": accuracy, "seconds": round(time.process_time() - start, 1)}


def _kept() -> list[dict[str, Any]]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    return [json.loads(line) for line in lines]


class Place(NamedTuple):
    """Where the search is, and on what it runs."""

    task: str
    epsilon: float
    device: str
    jobs: int

    def rows(self) -> list[dict[str, Any]]:
        """All runs that were kept."""
        return [r for r in _kept() if (r["task"], r["epsilon"]) == (self.task, self.epsilon)]

    def make(self, tried: list[Settings], seeds: range) -> None:
        """Make what is missing of these settings with these seeds, so many at a time."""
        made = [(row["settings"], row["seed"]) for row in self.rows()]
        missing = [pair for pair in product(tried, seeds) if pair not in made]
        if self.jobs == 1:
            for settings, seed in missing:
                _keep(trained(self.task, self.epsilon, settings, seed, self.device))
        elif missing:
            with ProcessPoolExecutor(self.jobs, get_context("spawn")) as pool:
                runs = [
                    pool.submit(trained, self.task, self.epsilon, *pair, self.device)
                    for pair in missing
                ]
                for run in as_completed(runs):
                    _keep(run.result())

    def score(self, settings: Settings, seeds: range) -> float:
        """The mean over seeds, of runs that were kept."""
        rows = [r for r in self.rows() if r["settings"] == settings and r["seed"] in seeds]
        return statistics.mean(row["accuracy"] for row in rows)


def _keep(row: dict[str, Any]) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), file=sys.stderr, flush=True)


def search(place: Place, seeds: range, most: int) -> None:
    """From each start, one setting after another, until none helps or so many were tried."""
    for start in STARTS:
        best, last = start | REST, None
        while best != last:
            last = best
            if place.jobs > 1:
                all_near = [settings for key in GRID for settings in _near(best, key)]
                place.make([s for k, s in enumerate(all_near) if s not in all_near[:k]], seeds)
            for key in GRID:
                if len(best_of(place, most)) >= most:
                    return
                tried = _near(best, key)
                place.make(tried, seeds)
                best = max(tried, key=lambda s: place.score(s, seeds))


def _near(best: Settings, key: str) -> list[Settings]:
    """These settings, and those with the next smaller and the next larger value of one."""
    values = GRID[key]
    places = [values.index(best[key]) + step for step in (-1, 0, 1)]
    return [best | {key: values[k]} for k in places if 0 <= k < len(values)]


def best_of(place: Place, count: int) -> list[Settings]:
    """The settings that the search liked best."""
    rows = [r for r in place.rows() if r["seed"] < FRESH and r["settings"] != ALONE]
    names = {json.dumps(row["settings"]): row["settings"] for row in rows}
    means = {
        name: statistics.mean(r["accuracy"] for r in rows if r["settings"] == settings)
        for name, settings in names.items()
    }
    return [names[name] for name in sorted(means, key=lambda n: -means[n])[:count]]


def table() -> str:
    """In Markdown, of whatever was checked."""
    lines = [
        "| task | ε | ε alone | best of the grid | difference | its setting | trials | seeds |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    kept = _kept()
    for task, epsilon in dict.fromkeys((row["task"], row["epsilon"]) for row in kept):
        rows = [row for row in kept if (row["task"], row["epsilon"]) == (task, epsilon)]
        shown: dict[str, dict[int, float]] = {}
        for row in rows:
            if row["seed"] >= FRESH:
                name = json.dumps(row["settings"])
                shown.setdefault(name, {})[row["seed"]] = 100 * row["accuracy"]
        alone = shown.pop(json.dumps(ALONE), {})
        shown = {name: found for name, found in shown.items() if found.keys() == alone.keys()}
        if not shown or len(alone) < 2:
            continue
        trials = len({json.dumps(row["settings"]) for row in rows} - {json.dumps(ALONE)})
        name, best = max(shown.items(), key=lambda item: statistics.mean(item[1].values()))
        apart = [alone[seed] - best[seed] for seed in alone]
        error = statistics.stdev(apart) / len(apart) ** 0.5
        setting = ", ".join(f"{k} {v}" for k, v in json.loads(name).items())
        lines.append(
            f"| {task} | {epsilon:g} | {statistics.mean(alone.values()):.2f} "
            f"| {statistics.mean(best.values()):.2f} | {statistics.mean(apart):+.2f} ± {error:.2f} "
            f"| {setting} | {trials} | {len(alone)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Search, check what was found, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("task", choices=["table", *beyond_rows.PAPER])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--search-seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--best", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    if asked.task != "table":
        place = Place(asked.task, asked.epsilon, asked.device, asked.jobs)
        search(place, range(asked.search_seeds), asked.trials)
        shown = range(FRESH, FRESH + asked.seeds)
        place.make([ALONE, *best_of(place, asked.best)], shown)
    print(table())


if __name__ == "__main__":
    main()
