"""Commands that train and show what came of it."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedls.commands.output import Json, answer, one_line, pairs
from dpfedls.errors import InputError, Stopped

if TYPE_CHECKING:
    from dpfedls.flower.local import Outcome
    from dpfedls.runs.recipe import Recipe
    from dpfedls.runs.record import Result, Watch

_SUMMARY = (
    *("run", "task", "method", "mode", "rounds", "metrics", "epsilon", "delta", "accountant"),
    *("noise_multiplier", "clip_norm", "seconds_per_round", "engine"),
)

Trust = Annotated[
    bool, typer.Option("--trust", help="Run own code that the folder names: only if it is yours.")
]

Log = Annotated[
    list[str] | None,
    typer.Option(help="Also log to csv, tensorboard, mlflow, or what a package registers."),
]


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the runs and the report.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds to average over.")] = 8,
    json: Json = False,
) -> None:
    """DP-Fed, DP-Fed-LS and what ε alone leads to, on 5,000 real MNIST images, offline."""
    from dpfedls.runs.demo import METHODS
    from dpfedls.runs.demo import demo as run_demo
    from dpfedls.runs.watch import progress

    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}; use 5 for a fair comparison")
    folder = new_folder(out, "demo")
    cells = len(METHODS) * seeds
    with progress(cells, "cell") as advance:
        done = iter(range(1, cells + 1))
        result = run_demo(folder, seeds, lambda note: advance(next(done), note))
    answer(result, json, _demo_text(result))


def recipes(json: Json = False) -> None:
    """The recipes that come with the package."""
    from dpfedls.runs.catalogue import catalogue

    found = catalogue()
    name, task = (max(len(r[key]) for r in found) for key in ("name", "task"))
    lines = [
        f"{r['name']:<{name}}  {r['task']:<{task}}  {r['reproduces'] or r['about']}" for r in found
    ]
    answer({"recipes": found}, json, "\n".join(lines))


def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or a path that ends in .toml.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key: --set plan.rounds=10. May be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; must be new or empty.")] = None,
    log: Log = None,
    json: Json = False,
) -> None:
    """Train one recipe; leave a run folder with model, log, ledger, statement and report."""
    from dpfedls.engine.ranks import find_workers
    from dpfedls.runs import recipes
    from dpfedls.runs.simulate import assist, start

    settings = list(set_ or [])
    settings += [] if seed is None else [f"seed={seed}"]
    settings += [] if device is None else [f'device="{device}"']
    folder = out
    try:
        with find_workers() as workers:
            if workers.rank > 0:
                assist(workers)
                return
            chosen = recipes.read(recipe, settings)
            name = f"{Path(recipe).stem}-{recipes.fingerprint(chosen)}"
            if folder is None:
                refuse_a_second(name)
                folder = new_folder(None, name)
            watch = [*logging_to(log or [], folder), *watching(chosen, folder)]
            finish(start(chosen, folder, watch, workers), json)
    except KeyboardInterrupt as interrupt:
        raise stopped(folder) from interrupt


def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change device, engine, block_size or evaluate_every: --set device=cpu."
        ),
    ] = None,
    trust: Trust = False,
    log: Log = None,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped, at the round after the last one released."""
    from dpfedls.engine.ranks import find_workers
    from dpfedls.runs.folder import read_recipe
    from dpfedls.runs.seal import is_finished
    from dpfedls.runs.simulate import assist
    from dpfedls.runs.simulate import resume as go_on

    try:
        with find_workers() as workers:
            if workers.rank > 0:
                assist(workers)
                return
            recipe = read_recipe(run)
            finished = is_finished(run)
            watch = [*logging_to(log or [], run), *watching(recipe, run)]
            result = go_on(run, watch, workers, trust=trust, settings=set_)
            if finished:  # said now: a refusal is one line
                said = f"{run} holds a finished run: its result is read, nothing is trained"
                print(f"dpfedls: {one_line(said)}", file=sys.stderr)
            finish(result, json)
    except KeyboardInterrupt as interrupt:
        raise stopped(run) from interrupt


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders to compare.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    json: Json = False,
) -> None:
    """One HTML page with the curves and figures of several runs."""
    from dpfedls.runs.compare import compare

    compare(runs, out)
    answer({"report": str(out)}, json, f"report: {out}")


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="The folder to write; must be new or empty.")],
    json: Json = False,
) -> None:
    """A model to hand on: weights, privacy statement and a card that carries it."""
    from dpfedls.runs.export import export as write

    files = [str(path) for path in write(run, out)]
    answer({"files": files}, json, "\n".join(files))


def attack(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Try to tell by the loss who was trained on: area under the ROC, 0.5 is a coin."""
    from dpfedls.auditing.attack import attack as attack_run

    found = attack_run(run, trust=trust)
    lines = [
        f"AUC {found['auc']:.4f} over {found['members']} members and as many others; 0.5 is a coin."
    ]
    lines += [f"round {at['round']:>4}  AUC {at['auc']:.4f}" for at in found.get("by_round", [])]
    answer(found, json, "\n".join(lines))


def doctor(json: Json = False) -> None:
    """Check that everything this package needs is here and computes what it should."""
    from dpfedls.commands.doctor import examine

    found = examine()
    lines = [f"{c['state']:<8} {c['check']:<24} {c['detail']}" for c in found["checks"]]
    answer(found, json, "\n".join(lines))
    if not found["ok"]:
        raise typer.Exit(1)


def new_folder(out: Path | None, name: str) -> Path:
    """The folder asked for, which must be free, or a new one under runs/."""
    from dpfedls.runs.folder import is_free

    if out is not None:
        if not is_free(out):
            raise InputError(
                f"{out} already holds files; nothing was touched: choose another --out"
            )
        return out
    return next(folder for folder in _numbered(name) if not folder.exists())


def refuse_a_second(name: str) -> None:
    """The same command after Ctrl-C must not quietly train, and pay for, everything once more."""
    for folder in itertools.takewhile(Path.exists, _numbered(name)):
        if (folder / "recipe.toml").is_file() and not (folder / "privacy.json").is_file():
            raise InputError(
                f"{folder} holds an unfinished run of this very recipe; a second one would be "
                f"paid for as well: go on with dpfedls resume {shlex.quote(str(folder))}, or "
                "choose another folder with --out"
            )


def stopped(folder: Path | None) -> Stopped:
    """What Ctrl-C leaves, and how to go on."""
    if folder is None or not (folder / "recipe.toml").is_file():
        return Stopped("stopped before the first round; nothing was written")
    return Stopped(
        "stopped; every finished round is kept, go on with: dpfedls resume "
        f"{shlex.quote(str(folder))}"
    )


def _numbered(name: str) -> Iterator[Path]:
    """The folders runs/NAME, runs/NAME-2 and so on."""
    yield Path("runs") / name
    yield from (Path("runs") / f"{name}-{k}" for k in itertools.count(2))


def logging_to(names: list[str], folder: Path) -> list[Watch]:
    """The loggers of these names."""
    from dpfedls.runs.loggers import named_logger

    return [named_logger(name, folder) for name in names]


def watching(recipe: Recipe, folder: Path) -> list[Watch]:
    """Show each round as it is released; diagnose it where the recipe asks for that."""
    from dpfedls.auditing.diagnostics import watchers
    from dpfedls.runs.watch import Progress

    return [*watchers(recipe, folder), Progress()]


def finish(result: Result | Outcome, json: bool) -> None:
    """Answer with a run's summary; a budget that ended it early is an exit code of its own."""
    values = result.summary()
    answer(values, json, pairs(values, _SUMMARY))
    if result.exhausted is not None:
        raise result.exhausted


def _strength(strength: float | None) -> str:
    return "adaptive" if strength is None else f"{strength:g}"


def _demo_text(result: dict[str, Any]) -> str:
    rows = [
        f"{row['method']:<10} {_strength(row['strength']):>8} {100 * row['accuracy_mean']:>10.2f} "
        f"± {100 * row['accuracy_std']:.2f}"
        for row in result["table"]
    ]
    return "\n".join(
        [
            f"Logistic regression on 5,000 MNIST images of 400 people; every model by itself costs "
            f"ε = {result['epsilon']:.2f} at δ = {result['delta']:.1e}.",
            f"Test accuracy in %, mean ± standard deviation over {result['seeds']} seeds:",
            "",
            f"{'method':<10} {'strength':>8} {'accuracy':>10}",
            *rows,
            "",
            f"report: {result['report']}",
        ]
    )
