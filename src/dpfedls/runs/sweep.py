"""``dpfedls sweep``: every combination of a grid with every seed, each a run folder of its own.

Runs follow one another: training uses all cores already, and two processes side by side gained
little and took longer to start.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dpfedls.errors import InputError
from dpfedls.privacy.durable import write_whole
from dpfedls.runs.compare import compare
from dpfedls.runs.curves import plain_text
from dpfedls.runs.folder import is_free, read_recipe, read_rounds, require_folder
from dpfedls.runs.grid import Metrics, Point, described, spread
from dpfedls.runs.recipe import Recipe, fingerprint
from dpfedls.runs.record import RoundRecord, Watch, last_metrics
from dpfedls.runs.seal import is_finished
from dpfedls.runs.simulate import resume, start

NOTE = (
    "every ε is that of one run; trained on the same people, all runs together cost more: "
    "dpfedls privacy total adds them up"
)


@dataclass
class Row:
    """A point of the grid and what its seeds came to so far."""

    point: Point
    runs: list[Path] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    spent: list[float | None] = field(default_factory=list)  # ε of each run, null without noise
    failed: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        finite = [spent for spent in self.spent if spent is not None]
        return {
            "settings": self.point.settings,
            "metrics": spread(self.metrics),
            "epsilon": max(finite, default=None) if len(finite) == len(self.spent) else None,
            "delta": self.point.recipe.plan.delta,
            "runs": [str(run) for run in self.runs],
            "failed": self.failed,
        }


Tell = Callable[[list[Row], str, bool], None]
"""``tell(rows, news, done)`` after every round; ``done`` when the news is that a run has ended."""
Watchers = Callable[[Recipe, Path], Sequence[Watch]]
"""Who else watches each run; also closed with it."""


def sweep(
    points: Sequence[Point], seeds: int, out: Path, tell: Tell, watchers: Watchers
) -> dict[str, Any]:
    """Make the runs that are not in ``out`` yet; rows, CSV file and a page that compares them.

    Guarantees: a finished run is not touched, a half-finished one is resumed; one that fails
    does not stop the others.
    """
    require_folder(out)
    rows = [Row(point) for point in points]
    for k in range(seeds):  # seed by seed: the whole table is there early
        for row in rows:
            _make(row, k, out, lambda news, done: tell(rows, news, done), watchers)
    folders = [folder for row in rows for folder in row.runs]
    if not folders:
        raise InputError(f"all runs failed; the first one: {rows[0].failed[0]}")
    table, report = out / "sweep.csv", out / "report.html"
    write_whole(table, as_csv(rows).encode())
    compare(folders, report)
    answer = [row.plain() for row in rows]
    return {"rows": answer, "csv": str(table), "report": str(report), "seeds": seeds, "note": NOTE}


def _make(
    row: Row, k: int, out: Path, tell: Callable[[str, bool], None], watchers: Watchers
) -> None:
    """Run one point with its k-th seed, go on with it, or read what it came to."""
    recipe = replace(row.point.recipe, seed=row.point.recipe.seed + k)
    folder = out / folder_name(row.point, recipe)
    name = f"{row.point.label} seed={recipe.seed}"

    def show(record: RoundRecord) -> None:
        tell(f"{name}: round {record.round}/{recipe.plan.rounds}", False)

    try:
        if not is_finished(folder):
            watch = [*watchers(recipe, folder), show]
            if is_free(folder):
                start(recipe, folder, watch)
            else:
                _check_code(recipe, folder)
                resume(folder, watch, trust=True)
    except InputError as error:
        row.failed.append(f"seed {recipe.seed}: {error}")
        tell(f"{name}: failed: {error}", True)
        return
    rounds = read_rounds(folder)
    row.runs.append(folder)
    row.metrics.append(last_metrics(rounds))
    row.spent.append(rounds[-1].epsilon if rounds else 0.0)
    tell(f"{name}: {described(row.metrics[-1])}", True)


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
