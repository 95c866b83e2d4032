"""``make results-check``: a cheap cell of each committed table, made again and compared.

Table 1 is computed anew. Of Tables 3 to 6 a small trial of one cell is run with the same draws, so
its loss must come out the same but for rounding; code that draws other random numbers on purpose
writes the trials anew (trials.py).

Of Table 2 two whole cells are run. Unchanged code with the committed seeds differs by rounding
only. Code that draws other random numbers may differ by noise: the means of n seeds by 4·s·√(2/n),
with s the standard deviation over seeds, measured once with 12 of them. Fresh noise exceeds that in
a cell twice in a thousand times (t with 11 degrees of freedom), so a check raises a false alarm
less than once in 200 times.
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
from dpfedls.paper.table1 import example
from dpfedls.paper.trials import run_trials

# (variant, part, column, row): standard deviation of the accuracy over seeds
CHECKED = {
    ("as published", "Poisson", "ε 7", "σ = 0"): 0.0061,
    ("as published", "Poisson", "ε 7", "σ = 1"): 0.0050,
}


ROUNDING = 1e-4  # of a trial's loss; processors add up in different orders


def check_formulas(committed: dict[str, Any]) -> list[dict[str, Any]]:
    """Table 1's values, computed again."""
    compared = []
    for now, then in zip(example(), committed["cells"], strict=True):
        for name in ("strongly_convex", "non_convex"):
            if now[name] is not None:
                line = {"cell": f"Table 1, {now['method']}, {name}", "now": now[name]}
                agrees = math.isclose(now[name], then[name], rel_tol=1e-9)
                compared.append(
                    line | {"committed": then[name], "tolerance": 0.0, "agrees": agrees}
                )
    return compared


def check_trials(committed: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """The trials of Tables 3 to 6, run again."""
    compared = []
    for now, then in zip(run_trials(out), committed, strict=True):
        tolerance = ROUNDING * then["loss"]
        same = now["settings"] == then["settings"] and abs(now["loss"] - then["loss"]) <= tolerance
        name = f"Table {now['item'][-1]}, {now['cell']}, loss of a trial"
        line = {"cell": name, "now": now["loss"], "committed": then["loss"]}
        compared.append(line | {"tolerance": tolerance, "agrees": same})
    return compared


def check_cells(committed: dict[str, Any], out: Path) -> list[dict[str, Any]]:
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
                "cell": f"Table 2, {', '.join(place)}, %",
                "now": 100 * now,
                "committed": 100 * cell["accuracy_mean"],
                "tolerance": 100 * deviation * tolerance,
                "agrees": abs(now - cell["accuracy_mean"]) <= deviation * tolerance,
            }
        )
    return compared


def main(folder: Path) -> int:
    """Print what was found; 0 if all cells agree, 1 if not, 2 if nothing could be compared."""
    try:
        one, two, trials = (_read(folder / f"{n}.json") for n in ("table1", "table2", "trials"))
        with tempfile.TemporaryDirectory() as out:
            found = check_formulas(one) + check_cells(two, Path(out))
            found += check_trials(trials, Path(out))
    except InputError as error:
        print(f"results-check: {error}", file=sys.stderr)
        return 2
    for line in found:
        print(
            f"{'agrees ' if line['agrees'] else 'DIFFERS'}  {line['cell']}: now {line['now']:.6g}, "
            f"committed {line['committed']:.6g}, tolerance {line['tolerance']:.2g}"
        )
    return 0 if all(line["agrees"] for line in found) else 1


def _read(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path} is not there, and without it there is nothing to compare with")
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
