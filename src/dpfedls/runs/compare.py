"""Several runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpfedls.runs.checkpoint import write_whole
from dpfedls.runs.folder import read_recipe, read_rounds
from dpfedls.runs.report import charts, html_table, page


def compare(folders: Sequence[Path], out: Path) -> None:
    """Curves and final figures of the runs, as one HTML file."""
    accuracy, loss, rows = {}, {}, []
    for folder in folders:
        recipe = read_recipe(folder)
        judged = [log for log in read_rounds(folder) if log.loss is not None]
        if not judged:
            continue
        accuracy[folder.name] = [(log.round, 100 * (log.accuracy or 0.0)) for log in judged]
        loss[folder.name] = [(log.round, log.loss or 0.0) for log in judged]
        last = judged[-1]
        rows.append(
            [
                folder.name,
                recipe.task,
                f"{getattr(recipe.denoiser, 'strength', 0):g}",
                str(recipe.seed),
                "∞" if last.epsilon is None else f"{last.epsilon:.4g}",
                f"{100 * (last.accuracy or 0.0):.2f}",
                f"{last.loss:.4f}",
            ]
        )
    header = ["run", "task", "strength", "seed", "ε", "accuracy (%)", "loss"]
    write_whole(out, page("Runs compared", html_table(header, rows), charts(accuracy, loss)))
