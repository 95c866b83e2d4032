"""ε alone with and without the votes that find where learning stalls (``local.shorten``).

    python benchmarks/vote.py run lectures --epsilon 0.5 --seeds 2
    python benchmarks/vote.py table                     the table of docs/results/rules.md

Every run is a line of docs/results/vote.jsonl: stop it and go on at will.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import foreign
from msgspec.structs import replace
from one_change import score

from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.stall import Votes, earlier
from dpfedls.randomness import SeededStreams
from dpfedls.runs.fitting import ready
from dpfedls.runs.simulate import simulate
from dpfedls.runs.train import asked
from dpfedls.tasks.task import Task, make_task

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "vote.jsonl"
Row = dict[str, Any]


def trained(task: Task, epsilon: float, seed: int, voting: bool) -> Row:
    """One run, and after which round trainings became short."""
    given = {"model": task.model, "clients": task.data, "loss": task.loss}
    recipe, own, denoiser = asked(**given, seed=seed, evaluate_every=10**6, epsilon=epsilon)
    recipe = ready(recipe, own)
    if not asks(recipe.plan):
        sys.exit(f"{epsilon:g} leaves too much noise for votes here: nothing to compare")
    if not voting:
        recipe = replace(recipe, local=replace(recipe.local, shorten=None))
    result = simulate(recipe, own, denoiser, None)
    norms = [line.clip_norm for line in result.history]
    falls = [t for t in range(1, len(norms)) if voting and norms[t] < 0.6 * norms[t - 1]]
    late = [t for t in falls if t >= recipe.plan.rounds // 5]  # not the search for the first norm
    return score(result, task) | {"stalled": late[0] if late else None}


def asks(plan: PrivacyPlan) -> bool:
    """Whether any round of the plan has a vote."""
    votes = Votes("older", "newer")
    return any(earlier(votes, plan, t) is not None for t in range(plan.rounds))


def _make(name: str, seed: int) -> Task:
    if name == "mnist-logistic":
        return make_task(name, 500, SeededStreams(seed))
    return foreign.make(name, seed)


def _kept() -> list[Row]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    return [json.loads(line) for line in lines]


def run(name: str, epsilon: float, seed: int) -> None:
    """Without the vote and with it, unless it is kept."""
    for voting in (False, True):
        row: Row = {"task": name, "epsilon": epsilon, "seed": seed, "vote": voting}
        if any(row.items() <= kept.items() for kept in _kept()):
            continue
        task, start = _make(name, seed), time.process_time()
        row |= trained(task, epsilon, seed, voting)
        row["seconds"] = round(time.process_time() - start, 1)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)


def table() -> str:
    """Each task without the vote and with it, and the round of the change in each seed."""
    lines = ["| task | ε | ε alone | with the vote | difference | short from round |"]
    lines.append("|---|---|---|---|---|---|")
    found: dict[tuple[str, float], dict[tuple[int, bool], Row]] = {}
    for row in _kept():
        key = row["task"], row["epsilon"]
        found.setdefault(key, {})[row["seed"], row["vote"]] = row
    for (task, epsilon), rows in sorted(found.items()):
        seeds = sorted(seed for seed, voting in rows if voting and (seed, False) in rows)
        if not seeds:
            continue
        alone, votes = ([rows[s, v]["score"] for s in seeds] for v in (False, True))
        apart = [b - a for a, b in zip(alone, votes, strict=True)]
        digits = 2 if rows[seeds[0], True]["of"] == "accuracy" else 4
        error = ""
        if len(apart) > 1:
            error = f" ± {statistics.stdev(apart) / len(apart) ** 0.5:.{digits}f}"
        changes = ", ".join(str(rows[s, True]["stalled"] or "–") for s in seeds)
        lines.append(
            f"| `{task}` | {epsilon:g} | {statistics.mean(alone):.{digits}f} "
            f"| {statistics.mean(votes):.{digits}f} "
            f"| {statistics.mean(apart):+.{digits}f}{error} | {changes} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("tasks", nargs="*", metavar="task", help="mnist-logistic, or of foreign.py")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=2)
    asked_for = parser.parse_args()
    for name in asked_for.tasks:
        for seed in range(asked_for.seeds):
            run(name, asked_for.epsilon, seed)
    print(table())


if __name__ == "__main__":
    main()
