"""``dpfedls sweep``: every combination of a grid with every seed, each a run folder of its own."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from dpfedls.errors import InputError
from dpfedls.privacy.durable import write_whole
from dpfedls.runs.compare import compare
from dpfedls.runs.curves import plain_text
from dpfedls.runs.folder import is_free, read_recipe, read_rounds, require_folder
from dpfedls.runs.grid import Metrics, Point, Tell, described, spread, tell_round
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.recipes import fingerprint
from dpfedls.runs.record import Watch, last_metrics
from dpfedls.runs.seal import is_finished
from dpfedls.runs.side_by_side import Job, ProcessLost, SideBySide
from dpfedls.runs.simulate import resume, start

NOTE = (
    "every ε is that of one run; trained on the same people, all runs together cost more: "
    "dpfedls privacy total adds them up"
)


class Made(NamedTuple):
    """What a run came to."""

    folder: Path
    metrics: Metrics
    epsilon: float | None  # null without noise


@dataclass
class Row:
    """A point of the grid and what its seeds came to so far, in whichever order they ended."""

    point: Point
    made: dict[int, Made] = field(default_factory=dict)  # by seed
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[Made]:
        """Those that were made, in the order of seeds."""
        return [self.made[seed] for seed in sorted(self.made)]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        finite = [run.epsilon for run in self.runs if run.epsilon is not None]
        return {
            "settings": self.point.settings,
            "metrics": spread([run.metrics for run in self.runs]),
            "epsilon": max(finite, default=None) if len(finite) == len(self.made) else None,
            "delta": self.point.recipe.plan.delta,
            "runs": [str(run.folder) for run in self.runs],
            "failed": [f"seed {seed}: {self.errors[seed]}" for seed in sorted(self.errors)],
        }


@dataclass(frozen=True)
class _Run(Job):
    row: Row
    folder: Path


Watchers = Callable[[Recipe, Path], Sequence[Watch]]
"""Who else watches each run; also closed with it."""


def sweep(
    rows: Sequence[Row],
    seeds: int,
    out: Path,
    tell: Tell,
    watchers: Watchers,
    jobs: int | None = None,
) -> dict[str, Any]:
    """Make the runs that are not in ``out`` yet; rows, CSV file and a page that compares them.

    Guarantees: a finished run is not touched, a half-finished one is resumed; one that fails
    does not stop the others.
    """
    require_folder(out)
    # Seed by seed: the whole table is there early.
    every = [_run(row, k, out) for k in range(seeds) for row in rows]
    waiting = []
    for run in every:
        if is_finished(run.folder):
            _take(run, None, tell)
        else:
            waiting.append(run)
    with SideBySide(jobs) as runs:
        work = partial(_make, watchers)
        for run, failure in runs.outcomes(work, waiting, partial(tell_round, tell)):
            _take(run, failure, tell)
    folders = [run.folder for row in rows for run in row.runs]
    answer = [row.plain() for row in rows]
    if not folders:
        raise InputError(f"all runs failed; the first one: {answer[0]['failed'][0]}")
    table, report = out / "sweep.csv", out / "report.html"
    write_whole(table, as_csv(rows).encode())
    compare(folders, report)
    return {"rows": answer, "csv": str(table), "report": str(report), "seeds": seeds, "note": NOTE}


def _run(row: Row, k: int, out: Path) -> _Run:
    recipe = replace(row.point.recipe, seed=row.point.recipe.seed + k)
    name = f"{row.point.label} seed={recipe.seed}"
    return _Run(name, recipe, row, out / folder_name(row.point, recipe))


def _make(watchers: Watchers, run: _Run, watch: Watch) -> None:
    """Run one point with one seed, or go on with it."""
    watching = [*watchers(run.recipe, run.folder), watch]
    if is_free(run.folder):
        start(run.recipe, run.folder, watching)
    else:
        _check_code(run.recipe, run.folder)
        resume(run.folder, watching, trust=True)


def _take(run: _Run, failure: Exception | None, tell: Tell) -> None:
    """Read what a run came to, or keep why it failed."""
    if isinstance(failure, InputError | ProcessLost):
        run.row.errors[run.recipe.seed] = str(failure)
        tell(run.name, f"failed: {failure}", True)
        return
    if failure is not None:
        raise failure
    rounds = read_rounds(run.folder)
    made = Made(run.folder, last_metrics(rounds), rounds[-1].epsilon if rounds else 0.0)
    run.row.made[run.recipe.seed] = made
    tell(run.name, described(made.metrics), True)


def folder_name(point: Point, recipe: Recipe) -> str:
    """What a person reads, and eight digits that differ for whatever else differs."""
    readable = re.sub(r"[^\w.=-]+", "_", point.label)[:80]
    return f"{readable}-seed={recipe.seed}-{fingerprint(recipe)}"


def _check_code(recipe: Recipe, folder: Path) -> None:
    """A folder may come from anybody: own code is run only if the recipe asked for names it too."""
    if read_recipe(folder).own_code != recipe.own_code:
        raise InputError(
            f"{folder} names other code of its own than the recipe does; it would be run: choose "
            "another --out"
        )


def as_csv(rows: Sequence[Row]) -> str:
    """One line a point: settings, how many runs, ε, δ, mean and deviation of every metric."""
    made = [row.plain() for row in rows]
    names = list(dict.fromkeys(name for row in made for name in row["metrics"]))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    figures = [f"{name}_{figure}" for name in names for figure in ("mean", "std")]
    lines.writerow([*made[0]["settings"], "runs", "epsilon", "delta", *figures])
    for row in made:
        metrics = [row["metrics"].get(name, {}) for name in names]
        figures = [found.get(figure) for found in metrics for figure in ("mean", "std")]
        settings = [plain_text(v) if isinstance(v, str) else v for v in row["settings"].values()]
        lines.writerow([*settings, len(row["runs"]), row["epsilon"], row["delta"], *figures])
    return text.getvalue()
