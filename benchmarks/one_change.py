"""ε alone as it was with a linear fall, and with one choice changed: what each costs or brings.

    python benchmarks/one_change.py run lectures --change learning_rate=0.0125 --change steps=5
    python benchmarks/one_change.py run deep --epsilon 0.5 --seeds 8 --change schedule=root
    python benchmarks/one_change.py run many_people --seeds 2 --change present
    python benchmarks/one_change.py table               the table of docs/results/rules.md

Tasks are those of foreign_tasks.py, on validation and test samples together. Every run is a line of
docs/results/one-change.jsonl: stop it and go on at will.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from foreign import TASKS, make
from msgspec.structs import replace

import dpfedls
from dpfedls.auto.choices import LOCAL as USUAL
from dpfedls.auto.choices import SCHEDULE
from dpfedls.metrics import evaluate
from dpfedls.runs.train import asked
from dpfedls.stepping import NoiseRate
from dpfedls.tasks.task import Task

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "one-change.jsonl"
BASE = "schedule=linear"  # what ε alone chose before the root
PRESENT = "present"  # what it chooses now
LOCAL = {"learning_rate": float, "steps": int, "decay": float}
Row = dict[str, Any]


def trained(task: Task, epsilon: float, seed: int, change: str) -> dpfedls.Result:
    """ε alone with a linear fall, or with one other choice; or as it is now."""
    key, _, value = change.partition("=")
    given: dict[str, Any] = {"model": task.model, "clients": task.data, "loss": task.loss}
    given |= {"seed": seed, "evaluate_every": 10**6}
    before: dict[str, Any] = {"schedule": value if key == "schedule" else "linear", "local": USUAL}
    now: dict[str, Any] = {"schedule": SCHEDULE}
    chosen = now if change == PRESENT else before
    recipe, _, denoiser = asked(**given, **chosen, epsilon=epsilon)
    local, plan, rate = recipe.local, recipe.plan, recipe.server_rate
    assert rate != "auto"
    if key in LOCAL:
        local = replace(local, **{key: LOCAL[key](value)})
    elif key == "clip_norm":
        plan = replace(plan, clip_norm=float(value), noise_multiplier=None).calibrated(epsilon)
    elif key == "noise" and isinstance(rate, NoiseRate):
        rate = replace(rate, noise=float(value))
    elif key != "schedule" and change != PRESENT:
        sys.exit(f"{change}: {PRESENT}, or change schedule, clip_norm, noise, {', '.join(LOCAL)}")
    return dpfedls.train(
        **given,
        plan=plan,
        local=local,
        denoiser=denoiser,
        server_rate=rate,
        schedule=recipe.schedule,
        averaging=recipe.averaging,
    )


def score(result: dpfedls.Result, task: Task) -> Row:
    """Accuracy in per cent, or the loss where the task has its own."""
    parts = [part for part in (task.validation, task.test) if part is not None]
    found = [evaluate(result.model, part, task.loss, task.metrics) for part in parts]
    name, unit = ("accuracy", 100) if "accuracy" in found[0] else ("loss", 1)
    sizes = [len(part[1]) for part in parts]
    total = sum(n * one[name] for n, one in zip(sizes, found, strict=True))
    return {"of": name, "score": unit * total / sum(sizes), "clip_norm": result.clip_norm}


def _kept() -> list[Row]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    return [json.loads(line) for line in lines]


def run(name: str, epsilon: float, seed: int, changes: list[str]) -> None:
    """What is missing, all changes of a seed one after another."""
    for change in (BASE, *changes):
        row = {"task": name, "epsilon": epsilon, "seed": seed, "change": change}
        if any(row.items() <= kept.items() for kept in _kept()):
            continue
        task, start = make(name, seed), time.process_time()
        row |= score(trained(task, epsilon, seed, change), task)
        row["seconds"] = round(time.process_time() - start, 1)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row, ensure_ascii=False), file=sys.stderr, flush=True)


def table() -> str:
    """Each change beside the linear fall, mean ± standard error over the seeds that both have."""
    lines = ["| task | ε | linear fall | change | difference | seeds |"]
    lines += ["|---|---|---|---|---|---|"]
    found: dict[tuple[str, float, str], dict[int, Row]] = {}
    for row in _kept():
        found.setdefault((row["task"], row["epsilon"], row["change"]), {})[row["seed"]] = row
    for (task, epsilon, change), rows in sorted(found.items()):
        alone = found.get((task, epsilon, BASE), {})
        seeds = sorted(rows.keys() & alone.keys())
        if change == BASE or len(seeds) < 2:
            continue
        apart = [rows[seed]["score"] - alone[seed]["score"] for seed in seeds]
        mean = statistics.mean(alone[seed]["score"] for seed in seeds)
        digits = 2 if rows[seeds[0]]["of"] == "accuracy" else 4
        error = statistics.stdev(apart) / len(apart) ** 0.5
        lines.append(
            f"| `{task}` | {epsilon:g} | {mean:.{digits}f} | {change} "
            f"| {statistics.mean(apart):+.{digits}f} ± {error:.{digits}f} | {len(seeds)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("tasks", nargs="*", metavar="task", help=", ".join(TASKS))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--change", action="append", default=[])
    asked_for = parser.parse_args()
    for name in asked_for.tasks:
        for seed in range(asked_for.seeds):
            run(name, asked_for.epsilon, seed, asked_for.change)
    print(table())


if __name__ == "__main__":
    main()
