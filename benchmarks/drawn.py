"""ε alone on public tables that nobody chose, beside the paper's plan and a constant.

    python benchmarks/drawn.py run                      all tables: runs what is missing
    python benchmarks/drawn.py run AER.SmokeBan         some of them
    python benchmarks/drawn.py run --scaled             with columns scaled to between 0 and 1
    python benchmarks/drawn.py table                    the table of docs/results/beyond.md

Every run is a line of docs/results/drawn.jsonl: stop it and go on at will. Of the paper's plan the
clip norm that is best on validation samples is shown; all figures are of test samples. A constant
is the commonest class of the people who are trained on, or their mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import drawn_tasks
import foreign
from foreign import AUTOMATIC, PAPER_CLIPS, Record, make, paper, score

from dpfedls import ClientData, Task

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


def table(scaled: bool = False) -> str:
    """A line each: accuracy in per cent, or the squared error as a share of the constant's.

    Scaled: with the loss, and the constant's, which knows how frequent each class is.
    """
    lines = [
        "| table, what is predicted | people | constant | ε = 1 | ε = 8 |",
        "|---|---|---|---|---|",
    ]
    kept = list(Record().rows.values())
    for name, maker in foreign.TASKS.items():
        task, shown = make(name, 0), []
        constant = _constant(task)
        for epsilon in EPSILONS:
            rows = [row for row in kept if (row["task"], row["epsilon"]) == (name, epsilon)]
            rows = [row for row in rows if row["seed"] == 0]
            alone = [row for row in rows if row["settings"] == AUTOMATIC]
            plans = [row for row in rows if "paper" in row["settings"]]
            if not alone or not plans:
                shown.append("–")
                continue
            best = max(plans, key=lambda row: score(row, "validation"))
            told = [_told(row["test"], constant, scaled) for row in (best, alone[0])]
            shown.append(f"{told[0]}, **{told[1]}**")
        what = (maker.__doc__ or "").removesuffix(".")
        base = f"{constant:.1f}" if constant > 0 else "1"
        base += f", {_entropy(task):.3f}" if scaled else ""
        lines.append(f"| {what} | {task.data.num_clients:,} | {base} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _constant(task: Task) -> float:
    """Accuracy of the commonest class; minus the squared error of the mean."""
    assert isinstance(task.data, ClientData)
    assert task.test is not None
    own, targets = task.data.targets, task.test[1]
    if own.is_floating_point():
        return -float((targets - own.mean()).square().mean())
    return 100 * float((targets == own.mode().values).float().mean())


def _entropy(task: Task) -> float:
    """The loss of the shares of classes."""
    assert isinstance(task.data, ClientData)
    assert task.test is not None
    shares = task.data.targets.bincount(minlength=int(task.test[1].max()) + 1).double()
    return float(-(shares / shares.sum()).log()[task.test[1]].mean())


def _told(found: dict[str, float], constant: float, with_loss: bool) -> str:
    if constant < 0:
        return f"{-found['loss'] / constant:.3g}"
    said = f"{100 * found['accuracy']:.1f}"
    return f"{said} {found['loss']:.3f}" if with_loss else said


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--scaled", action="store_true")
    asked = parser.parse_args()
    foreign.TASKS.clear()
    foreign.TASKS.update(drawn_tasks.tasks(asked.scaled))
    if unknown := set(asked.tables) - foreign.TASKS.keys():
        parser.error(f"unknown tables {sorted(unknown)}; known are {', '.join(foreign.TASKS)}")
    for name in (asked.tables or foreign.TASKS) if asked.what == "run" else ():
        for epsilon in asked.epsilon or EPSILONS:
            run(name, epsilon, asked.seeds)
    print(table(asked.scaled))


if __name__ == "__main__":
    main()
