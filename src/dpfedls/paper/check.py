"""``make results-check``: two cheap cells of the committed Table 2, run again and compared.

Unchanged code with the committed seeds differs by rounding only. Code that draws other random
numbers may differ by noise: the means of n seeds by 4·s·√(2/n), with s the standard deviation over
seeds, measured once with 12 of them. Fresh noise exceeds that in a cell twice in a thousand times
(t with 11 degrees of freedom), so a check raises a false alarm less than once in 200 times.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from dpfedls.errors import InputError
from dpfedls.paper.cells import Cell, run_cells
from dpfedls.paper.item import Options

# (variant, part, column, row): standard deviation of the accuracy over seeds
CHECKED = {
    ("as published", "Poisson", "ε 7", "σ = 0"): 0.0061,
    ("as published", "Poisson", "ε 7", "σ = 1"): 0.0050,
}


def check(committed: dict[str, Any], out: Path) -> list[dict[str, Any]]:
    """Run the checked cells of a committed table2.json in an empty folder, with as many seeds."""
    places = {
        tuple(c[k] for k in ("variant", "part", "column", "row")): c for c in committed["cells"]
    }
    cells = [places[place] for place in CHECKED]
    seeds, settings = committed["seeds"], tuple(committed["settings"])
    options = Options(out, seeds=seeds, settings=settings)
    found = run_cells([Cell(cell["recipe"], tuple(cell["settings"])) for cell in cells], options)
    compared = []
    for (place, deviation), cell, runs in zip(CHECKED.items(), cells, found, strict=True):
        now, tolerance = mean(r.summary["accuracy"] for r in runs), 4 * math.sqrt(2 / seeds)
        compared.append(
            {
                "cell": ", ".join(place),
                "now": now,
                "committed": cell["accuracy_mean"],
                "tolerance": deviation * tolerance,
                "agrees": abs(now - cell["accuracy_mean"]) <= deviation * tolerance,
            }
        )
    return compared


def main(path: Path) -> int:
    """Print what was found; 0 if all cells agree, 1 if not, 2 if nothing could be compared."""
    try:
        if not path.is_file():
            raise InputError(
                f"{path} is not there, and without it there is nothing to compare with"
            )
        with tempfile.TemporaryDirectory() as folder:
            found = check(json.loads(path.read_text(encoding="utf-8")), Path(folder))
    except InputError as error:
        print(f"results-check: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(
            f"{'agrees ' if line['agrees'] else 'DIFFERS'}  Table 2, {line['cell']}: now "
            f"{100 * line['now']:.2f}, committed {100 * line['committed']:.2f}, tolerance "
            f"{100 * line['tolerance']:.2f} points"
        )
    return 0 if all(line["agrees"] for line in found) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
