"""Finished runs as lines of a figure: a quantity by round, one line a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpfedls.errors import InputError
from dpfedls.paper.cells import Run
from dpfedls.paper.writing import over_seeds


def data_of(runs: Sequence[Sequence[Run]]) -> str:
    """What the runs were trained on, for a title: as they noted it, every way that occurs."""
    noted = dict.fromkeys(o.data for row in runs for run in row for o in run.origins)
    return " and ".join(filter(None, noted)) or str(runs[0][0].summary["task"])


def seeds_of(runs: Sequence[Run]) -> list[int]:
    """The seeds of a line, in its order."""
    return [run.summary["seed"] for run in runs]


def by_round(runs: Sequence[Run], quantities: Sequence[str]) -> dict[str, Any]:
    """Each quantity of the diagnostics, or test_loss and test_accuracy, in evaluated rounds."""
    judged = [[line for line in run.rounds if line.loss is not None] for run in runs]
    for run, lines in zip(runs, judged, strict=True):
        told = {name for name in quantities if not name.startswith("test_")}
        if told and len(run.diagnostics) != len(lines):
            raise InputError(
                f"{run.folder}/diagnostics.jsonl has {len(run.diagnostics)} of {len(lines)} "
                f"evaluated rounds, so {min(told)} cannot be shown; bring the whole file, or make "
                "the run again"
            )
    found: dict[str, Any] = {"rounds": [line.round for line in judged[0]]}
    for name in quantities:
        if name.startswith("test_"):
            key = name.removeprefix("test_")
            found[name] = [[getattr(line, key) for line in lines] for lines in judged]
        else:
            found[name] = [[line[name] for line in run.diagnostics] for run in runs]
    return found


def drawn(line: dict[str, Any], quantity: str) -> np.ndarray:
    """What is drawn, seeds × rounds: accuracies in per cent, NaN where nothing was measured."""
    return np.asarray(line[quantity], dtype=float) * (100 if "accuracy" in quantity else 1)


def mean(line: dict[str, Any], quantity: str) -> np.ndarray:
    """As drawn, over seeds, by round."""
    return drawn(line, quantity).mean(axis=0)


def final(line: dict[str, Any], quantity: str) -> tuple[float, float | None]:
    """As drawn after the last round: mean and standard deviation; one seed has none."""
    return over_seeds(drawn(line, quantity)[:, -1].tolist())


def fluctuation(line: dict[str, Any], quantity: str) -> float:
    """How rough a line is: root mean square of its second differences, averaged over seeds."""
    bends = np.diff(drawn(line, quantity), n=2, axis=1)
    return float(np.sqrt(np.mean(bends**2, axis=1)).mean()) if bends.size else float("nan")


def of_seeds(lines: Sequence[dict[str, Any]]) -> str:
    """What lines show; not all need have the same number of seeds."""
    counts = {len(line["seeds"]) for line in lines}
    most = max(counts)
    fewer = " or fewer" if len(counts) > 1 else ""
    return (
        "one seed" if most == 1 else f"means over {most}{fewer} seeds, with bands of one deviation"
    )
