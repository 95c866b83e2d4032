"""Several runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpfedls.privacy.durable import write_whole
from dpfedls.runs.folder import read_recipe, read_rounds
from dpfedls.runs.record import last_metrics
from dpfedls.runs.report import charts, html_table, page, shown


def compare(folders: Sequence[Path], out: Path) -> None:
    """Curves and final figures of the runs, as one HTML file."""
    recipes = {folder.name: read_recipe(folder) for folder in folders}
    logs = {folder.name: read_rounds(folder) for folder in folders}
    last = {name: last_metrics(rounds) for name, rounds in logs.items()}
    metrics = list(dict.fromkeys(key for found in last.values() for key in found))
    header = ["run", "task", "method", "mode", "seed", "rounds", "noise", "δ", "ε", *metrics]
    rows = []
    for name, rounds in logs.items():
        recipe, spent = recipes[name], rounds[-1].epsilon if rounds else 0.0
        rows.append(
            [
                *(name, recipe.task, recipe.method, recipe.mode, str(recipe.seed)),
                *(str(len(rounds)), f"{recipe.plan.noise:.4g}", f"{recipe.plan.target_delta:.2g}"),
                "∞" if spent is None else f"{spent:.4g}",
                *(shown(key, last[name].get(key)) for key in metrics),
            ]
        )
    write_whole(out, page("Runs compared", html_table(header, rows), charts(logs)))
