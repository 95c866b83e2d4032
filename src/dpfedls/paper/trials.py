"""A cheap trial of one cell of each of Tables 3 to 6, in seconds on a CPU.

Real data and the cell's own method, with few people, one long round and so little noise that the
loss tells how people trained and what the denoiser did. A trial's loss means nothing by itself;
that it is the same as before means that the cell is still made the same way.

    python -m dpfedls.paper.trials docs/results/trials.json     writes them anew
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from dpfedls.paper import grids
from dpfedls.paper.cells import Cell, run_cells
from dpfedls.paper.grids import Grid
from dpfedls.paper.item import Options
from dpfedls.privacy.durable import write_whole

_SMALL = (
    *("local.precision=float32", "engine=looped", "diagnose=false"),
    *("plan.rounds=1", "plan.noise_multiplier=0.001", "server_rate=10"),
)
_IMAGES = (
    *_SMALL,
    "task=svhn5k-cnn",
    "plan.num_clients=400",
    "plan.sampler={kind='fixed', cohort=3}",
    "local.epochs=3",
)
_WORDS = (
    *_SMALL[1:],
    "plan.num_clients=2",
    "plan.sampler={kind='fixed', cohort=1}",
    "local={steps=1, batch_size=10, learning_rate=1.47, projection='step'}",
)
# item: (part, row, column) of its cell, and what makes it cheap
TRIALS = {
    "table3": (("Poisson", "σ = 1", "ε 5.07"), _IMAGES),
    "table4": (("Poisson", "james-stein", "ε 5.07"), _IMAGES),
    "table5": (("Poisson", "σ = 1", "BHWC"), _IMAGES),
    "table6": (("Poisson", "σ = 1", "ε 14.04"), _WORDS),
}


def run_trials(out: Path, trials: dict[str, Any] = TRIALS) -> list[dict[str, Any]]:
    """Run every trial once; where it stands in its table, and its test loss."""
    found = []
    for item, (labels, settings) in trials.items():
        every = grids.places(item, grids.read(item, Grid))
        place = next(
            p for p in every if p.variant == "as published" and (p.part, p.row, p.column) == labels
        )
        cell = Cell(place.cell.recipe, (*place.cell.settings, *settings))
        ((run,),) = run_cells([cell], Options(out, seeds=1))
        cells = {"item": item, "cell": ", ".join(labels), "settings": list(cell.settings)}
        found.append(cells | {"loss": run.summary["loss"]})
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dpfedls.paper.trials FILE.json")
    with tempfile.TemporaryDirectory() as folder:
        written = json.dumps(run_trials(Path(folder)), indent=1, ensure_ascii=False) + "\n"
    write_whole(Path(sys.argv[1]), written.encode())
