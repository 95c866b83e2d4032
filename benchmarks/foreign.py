"""ε alone on data that no rule was made on, beside the paper's plan and beside tuning by hand.

    python benchmarks/foreign.py run                    all tasks: runs what is missing
    python benchmarks/foreign.py run raw_table deep     some of them
    python benchmarks/foreign.py test raw_table         ε alone without and with test samples
    python benchmarks/foreign.py table                  the table of docs/results/beyond.md
    python benchmarks/foreign.py test-table             and that of its public tables

Every run is a line of docs/results/foreign.jsonl: stop it and go on at will. Tuning by hand begins
where ε alone does and changes one setting after another, with at most twice the rounds, people and
local steps. What is best on the validation samples of seed 0 is shown, on all seeds' test samples.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import exponential_tasks
import foreign_tasks
import held_tasks
import many_tasks
import msgspec
import numpy as np
import rare_tasks
import raw_tasks
import stranger_tasks
import torch
import unit_tasks

import dpfedls
from dpfedls.auto.choices import SCHEDULE
from dpfedls.denoisers.adaptive import AdaptiveSmoothing
from dpfedls.errors import InputError
from dpfedls.metrics import evaluate
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.stepping import NoiseRate

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "foreign.jsonl"
AUTOMATIC: dict[str, Any] = {"automatic": True}
WITH_TEST: dict[str, Any] = {"automatic with test": True}
_SHOWN = ("paper", *AUTOMATIC, *WITH_TEST)
PAPER_CLIPS = (0.3, 1.0, 0.1, 3.0)

TASKS = foreign_tasks.TASKS | held_tasks.TASKS | exponential_tasks.TASKS | unit_tasks.TASKS
TASKS |= many_tasks.TASKS | raw_tasks.TASKS | rare_tasks.TASKS | stranger_tasks.TASKS

Settings = dict[str, Any]
Row = dict[str, Any]


def make(name: str, seed: int) -> dpfedls.Task:
    """A task and a model's first weights, both by the seed."""
    torch.manual_seed(seed)
    return TASKS[name](np.random.default_rng([seed, 7]))


def paper(people: int, clip: float) -> Settings:
    """The paper's plan with that clip norm: the best of four is shown."""
    cohort = max(10, people // 20)
    return {"paper": True, "cohort": cohort, "rounds": 100, "clip": clip}


def trained(name: str, epsilon: float, seed: int, settings: Settings) -> Row:
    """One run: what it reached on the validation and on the test samples, and what it was."""
    task = make(name, seed)
    given: dict[str, Any] = {"epsilon": epsilon}
    if settings == WITH_TEST:
        given["test"] = task.validation
    elif settings != AUTOMATIC:
        given = _given(task.data.num_clients, epsilon, settings)
    start = time.process_time()
    result = dpfedls.train(
        model=task.model,
        clients=task.data,
        loss=task.loss,
        seed=seed,
        evaluate_every=10**6,
        **given,
    )
    assert task.validation is not None
    assert task.test is not None
    row: Row = {"task": name, "epsilon": epsilon, "seed": seed, "settings": settings}
    row["seconds"] = round(time.process_time() - start, 1)
    for part, samples in (("validation", task.validation), ("test", task.test)):
        row[part] = evaluate(result.model, samples, task.loss, task.metrics)
    row["chosen"] = _plain(result) if settings == AUTOMATIC else None
    row["clip_norm"] = result.clip_norm
    return row


def _plain(result: dpfedls.Result) -> Settings:
    """What was chosen, as settings that tuning may change."""
    plan, recipe = result.plan, result.recipe
    return {
        "cohort": round(plan.expected_cohort),
        "rounds": plan.rounds,
        "quantile": plan.clipping.quantile,
        "rate": msgspec.to_builtins(recipe.server_rate),
        "learning_rate": recipe.local.learning_rate,
        "steps": recipe.local.steps,
        "epochs": recipe.local.epochs,
        "most_steps": recipe.local.most_steps,
        "retry_step": recipe.local.retry_step,
        "smoothing": True,
    }


def _given(people: int, epsilon: float, settings: Settings) -> dict[str, Any]:
    plan = dpfedls.PrivacyPlan(
        sampler=dpfedls.PoissonSampling(rate=min(1.0, settings["cohort"] / people)),
        num_clients=people,
        rounds=settings["rounds"],
        clip_norm=settings.get("clip") or AdaptiveClipping(quantile=settings["quantile"]),
    ).calibrated(epsilon=epsilon)
    if "paper" in settings:
        return {"plan": plan, "local": dpfedls.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)}
    return {
        "plan": plan,
        "local": dpfedls.LocalSGD(
            steps=settings["steps"],
            epochs=settings.get("epochs"),
            most_steps=settings.get("most_steps"),
            batch_size=10,
            learning_rate=settings["learning_rate"],
            retry_step=settings.get("retry_step"),
        ),
        "denoiser": AdaptiveSmoothing() if settings["smoothing"] else dpfedls.Identity(),
        "server_rate": msgspec.convert(settings["rate"], float | NoiseRate),
        "schedule": SCHEDULE,
    }


def moves(people: int, start: Settings) -> list[Any]:
    """One setting each: a function of the settings and of up or down; None where it cannot go."""

    def times(key: str, factor: float) -> Any:
        return lambda s, up: s | {key: _scaled(s[key], factor if up else 1 / factor)}

    def rounds(s: Settings, up: bool) -> Settings | None:
        return s | {"rounds": s["rounds"] * 2} if up and s["rounds"] == start["rounds"] else None

    def cohort(s: Settings, up: bool) -> Settings | None:
        other = min(people, s["cohort"] * 2)
        return s | {"cohort": other} if up and s["cohort"] == start["cohort"] < other else None

    def smoothing(s: Settings, up: bool) -> Settings | None:
        return None if up == s["smoothing"] else s | {"smoothing": up}

    def steps(s: Settings, up: bool) -> Settings | None:
        if s["steps"] is None:  # one pass over one's own samples
            return None
        other = s["steps"] * 2 if up else s["steps"] // 2
        return s | {"steps": other} if 12 <= other <= 50 else None

    return [times("learning_rate", 4.0), times("rate", 2.0), steps, cohort, rounds, smoothing]


def _scaled(rate: Any, factor: float) -> Any:
    if isinstance(rate, dict):
        return rate | {key: _round(rate[key] * factor) for key in ("noise", "at_most")}
    return _round(rate * factor)


def _round(value: float) -> float:
    return float(f"{value:.3g}")


class Record:
    """What was run already; the rest is run when asked for."""

    def __init__(self) -> None:
        lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
        self.rows = {_key(row): row for row in map(json.loads, lines)}

    def run(self, name: str, epsilon: float, seed: int, settings: Settings) -> Row:
        """A row of the record, made if it is not there."""
        row: Row = {"task": name, "epsilon": epsilon, "seed": seed, "settings": settings}
        if _key(row) in self.rows:
            return self.rows[_key(row)]
        try:
            row = trained(name, epsilon, seed, settings)
        except InputError as error:
            row |= {"failed": str(error)}
        self.rows[_key(row)] = row
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(_told(row), file=sys.stderr, flush=True)
        return row


def _key(row: Row) -> tuple[Any, ...]:
    settings = json.dumps(row["settings"], sort_keys=True)
    return row["task"], row["epsilon"], row["seed"], settings


def _told(row: Row) -> str:
    known = {k: round(v, 4) for k, v in row.get("validation", {}).items()}
    more = {k: row.get(k) for k in ("seconds", "failed", "clip_norm", "chosen") if row.get(k)}
    return f"{row['task']} ε {row['epsilon']:g} seed {row['seed']} {known} {row['settings']} {more}"


def score(row: Row, part: str) -> float:
    """Accuracy in points, or minus the loss: the larger, the better."""
    found = row.get(part, {})
    value = 100 * found["accuracy"] if "accuracy" in found else -found.get("loss", math.inf)
    return value if math.isfinite(value) else -math.inf


def tuned(record: Record, name: str, epsilon: float, trials: int) -> Settings:
    """The best settings on the validation samples of seed 0, from those that ε alone chose."""
    best = record.run(name, epsilon, 0, AUTOMATIC)
    if "chosen" not in best:
        return AUTOMATIC
    people = make(name, 0).data.num_clients
    for tried in _path(best["chosen"], people, trials):
        row = record.run(name, epsilon, 0, tried.value)
        tried.better = score(row, "validation") > score(best, "validation")
        best = row if tried.better else best
    return best["settings"]


class _Tried:
    """A trial on the path, to be told whether it was better."""

    def __init__(self, value: Settings) -> None:
        self.value, self.better = value, False


def _path(here: Settings, people: int, trials: int) -> Iterator[_Tried]:
    """One setting after another, up and then down, and on in a direction that helped."""
    for move in moves(people, here):
        for up in (True, False):
            helped = False
            while trials and (there := move(here, up)) is not None:
                trials -= 1
                tried = _Tried(there)
                yield tried
                if not tried.better:
                    break
                here, helped = there, True
            if helped:
                break


def run(name: str, epsilon: float, seeds: int, trials: int) -> None:
    """Automatic, the paper's plan and tuning, at one ε."""
    record = Record()
    people = make(name, 0).data.num_clients
    clips = [paper(people, clip) for clip in PAPER_CLIPS]
    rows = [record.run(name, epsilon, 0, settings) for settings in clips]
    shown = [AUTOMATIC, max(rows, key=lambda row: score(row, "validation"))["settings"]]
    shown.append(tuned(record, name, epsilon, trials))
    for seed in range(1, seeds):
        for settings in shown:
            record.run(name, epsilon, seed, settings)


def with_test(name: str, epsilon: float, seeds: int) -> None:
    """The paper's plan, and ε alone without and with public samples (the validation samples)."""
    record = Record()
    people = make(name, 0).data.num_clients
    rows = [record.run(name, epsilon, 0, paper(people, clip)) for clip in PAPER_CLIPS]
    best = max(rows, key=lambda row: score(row, "validation"))["settings"]
    for seed in range(seeds):
        for settings in (best, AUTOMATIC, WITH_TEST):
            record.run(name, epsilon, seed, settings)


def test_table() -> str:
    """Each task and ε that was run with test samples, on the test samples, over the same seeds."""
    lines = ["| task | ε | seeds | the paper's plan | ε alone | ε alone, `test=` |"]
    lines.append("|---|---|---|---|---|---|")
    kept = Record().rows.values()
    for name, maker in TASKS.items():
        what = (maker.__doc__ or "").strip().rstrip(".")
        for epsilon in sorted({row["epsilon"] for row in kept}):
            rows = [r for r in kept if (r["task"], r["epsilon"]) == (name, epsilon)]
            seeds = {row["seed"] for row in rows if row["settings"] == WITH_TEST}
            same = [row for row in rows if row["seed"] in seeds]
            kinds = [[r for r in same if kind in r["settings"]] for kind in _SHOWN]
            if seeds and all(kinds):
                shown = [_mean(found) for found in kinds]
                told = [f"{-mean:.4g}" if mean < 0 else f"{mean:.1f}" for mean in shown]
                counts = f"{epsilon:g} | {len(seeds)}"
                lines.append(f"| `{name}`: {what} | {counts} | {' | '.join(told)} |")
    return "\n".join(lines)


def table() -> str:
    """Each task and ε on the test samples; a loss has its difference in per cent."""
    lines = ["| task | ε | the paper's plan | ε alone | best of trials | trials | ε alone − best |"]
    lines.append("|---|---|---|---|---|---|---|")
    kept = Record().rows.values()
    for name, maker in TASKS.items():
        for epsilon in sorted({row["epsilon"] for row in kept}):
            rows = [r for r in kept if (r["task"], r["epsilon"]) == (name, epsilon)]
            if any(row["settings"] == AUTOMATIC for row in rows):
                what = (maker.__doc__ or "").strip().rstrip(".")
                lines.append(f"| `{name}`: {what} | {epsilon:g} | {' | '.join(_cells(rows))} |")
    return "\n".join(lines)


def _cells(rows: list[Row]) -> list[str]:
    kinds: dict[str, list[Row]] = {"paper": [], "automatic": [], "hand": []}
    for row in rows:
        kind = next((k for k in ("paper", "automatic") if k in row["settings"]), "hand")
        if row["settings"] == WITH_TEST:
            continue
        kinds[kind].append(row)
    trials = len({_key(row) for row in kinds["hand"] if row["seed"] == 0})
    kinds["hand"] += kinds["automatic"]  # where no trial was better
    paper, alone, best = (_mean(found) for found in kinds.values())
    loss = alone < 0
    behind = 100 * (alone - best) / abs(best) if loss else alone - best
    shown = ["–" if m == -math.inf else f"{-m:.4g}" if loss else f"{m:.1f}" for m in (paper, alone)]
    shown.append(f"{-best:.4g}" if loss else f"{best:.1f}")
    return [*(shown if trials else [*shown[:2], "–"]), str(trials), _behind(behind, loss, trials)]


def _behind(behind: float, loss: bool, trials: int) -> str:
    return f"{behind:+.1f}{' %' if loss else ''}" if trials else "–"


def _mean(rows: list[Row]) -> float:
    """Of the settings that are best on seed 0's validation samples, over all of their seeds."""
    first = [row for row in rows if row["seed"] == 0]
    if not first:
        return -math.inf
    best = max(first, key=lambda row: score(row, "validation"))["settings"]
    return statistics.mean(score(row, "test") for row in rows if row["settings"] == best)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "test", "table", "test-table"])
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=24)
    asked = parser.parse_args()
    if unknown := set(asked.tasks) - TASKS.keys():
        parser.error(f"unknown tasks {sorted(unknown)}; known are {', '.join(TASKS)}")
    pairs = [(name, e) for name in asked.tasks or TASKS for e in asked.epsilon or (1.0, 4.0)]
    for name, epsilon in pairs:
        if asked.what == "run":
            run(name, epsilon, asked.seeds, asked.trials)
        elif asked.what == "test":
            with_test(name, epsilon, asked.seeds)
    print(test_table() if "test" in asked.what else table())


if __name__ == "__main__":
    main()
