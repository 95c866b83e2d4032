"""ε alone on public tables that nobody chose, beside the paper's plan and a constant.

    python benchmarks/drawn.py run                      all tables: runs what is missing
    python benchmarks/drawn.py run AER.SmokeBan         some of them
    python benchmarks/drawn.py table                    the table of docs/results/drawn.md

Every run is a line of docs/results/drawn.jsonl: stop it and go on at will. Of the paper's plan the
clip norm that is best on validation samples is shown; all figures are of test samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import drawn_tasks
import foreign
import numpy as np
import torch
from foreign import AUTOMATIC, PAPER_CLIPS, Record, Row, make, paper, score

foreign.RESULTS = Path(__file__).parents[1] / "docs" / "results" / "drawn.jsonl"
EPSILONS = (1.0, 8.0)


def run(name: str, epsilon: float, seeds: int) -> None:
    """ε alone, and the paper's plan with the best of its clip norms."""
    record = Record()
    people = make(name, 0).data.num_clients
    rows = [record.run(name, epsilon, 0, paper(people, clip)) for clip in PAPER_CLIPS]
    best = max(rows, key=lambda row: score(row, "validation"))["settings"]
    for seed in range(seeds):
        for settings in (best, AUTOMATIC):
            record.run(name, epsilon, seed, settings)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    foreign.TASKS.clear()
    foreign.TASKS.update(drawn_tasks.tasks())
    for name in asked.tables or foreign.TASKS:
        for epsilon in asked.epsilon or EPSILONS:
            run(name, epsilon, asked.seeds)


if __name__ == "__main__":
    main()
