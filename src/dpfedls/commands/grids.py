"""``dpfedls sweep`` and ``dpfedls tune``: many settings of one recipe."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedls.commands.output import Json, answer, shown
from dpfedls.errors import InputError, Stopped, require_finite

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dpfedls.runs.grid import Tell

Recipe = Annotated[str, typer.Argument(help="A recipe's name, or a path that ends in .toml.")]
Grid = Annotated[
    list[str],
    typer.Option(help="A key and its values: --grid plan.clip_norm=0.3,0.6. May be repeated."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a key of every run: --set plan.rounds=10. May be repeated."),
]


def check_jobs(jobs: int | None) -> int | None:
    """Of every command that has --jobs."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}; 1 makes runs one by one")
    return jobs


Jobs = Annotated[
    int | None,
    typer.Option(
        callback=check_jobs,
        help="Runs at a time, each in a process and, on cpu, a thread of its own. "
        "If absent: one by one, with all cores.",
    ),
]
Rows = Callable[[], list[dict[str, Any]]]
"""The table as it stands."""


def sweep(
    recipe: Recipe,
    grid: Grid,
    seeds: Annotated[int, typer.Option(help="Seeds to average over.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all runs; those that are in it are used again.")
    ] = None,
    jobs: Jobs = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Run every combination of some settings with every seed; table, CSV and comparison report."""
    from dpfedls.auditing.diagnostics import watchers
    from dpfedls.runs import sweep as sweeping
    from dpfedls.runs.grid import points

    _check_seeds(seeds)
    rows = [sweeping.Row(point) for point in points(recipe, grid, set_ or [])]
    folder = out or Path("runs") / f"sweep-{Path(recipe).stem}"
    table = lambda: [row.plain() for row in rows]  # noqa: E731
    with _showing(table, "the same command goes on from here") as tell:
        result = sweeping.sweep(rows, seeds, folder, tell, watchers, jobs)
    lines = [*_lines(result["rows"]), "", result["note"]]
    lines += [f"csv: {result['csv']}", f"report: {result['report']}"]
    answer(result, json, "\n".join(lines))
    failures = [failure for row in result["rows"] for failure in row["failed"]]
    if failures:
        print(f"dpfedls: {len(failures)} runs failed; {failures[0]}", file=sys.stderr)
        raise typer.Exit(1)


def tune(
    recipe: Recipe,
    grid: Grid,
    seeds: Annotated[int, typer.Option(help="Seeds of the last rung; rungs have 1, 2, 4, …")] = 4,
    highest: Annotated[
        str | None, typer.Option(help="Choose the largest of this metric; accuracy if absent.")
    ] = None,
    lowest: Annotated[
        str | None, typer.Option(help="Choose the least of this metric; loss if no accuracy.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(help="Also what choosing on people's own data costs, with so many runs."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the best recipe here: NAME.toml.")] = None,
    jobs: Jobs = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Find the best settings at the recipe's own ε on proxy data: halving, with ever more seeds."""
    from dpfedls.privacy.durable import write_whole
    from dpfedls.runs import tune as tuning

    _check_seeds(seeds)
    if price is not None:
        require_finite("--price", price, "it is how many runs are expected; 10, say")
    if highest and lowest:
        raise InputError("--highest and --lowest were both given; one metric decides: remove one")
    if out is not None and (out.suffix != ".toml" or out.exists()):
        raise InputError(f"--out {out} must be a new file that ends in .toml; nothing was touched")
    trials = tuning.trials_for(recipe, grid, set_ or [])
    goal = tuning.Goal(highest or lowest, highest=not lowest)
    table = lambda: [trial.plain() for trial in trials]  # noqa: E731
    with _showing(table, "trials are not kept") as tell:
        result = tuning.tune(trials, seeds, goal, tell, jobs)
        if price is not None:
            result["price"] = tuning.price(trials, price)
    result["recipe"] = None if out is None else str(out)
    if out is not None:
        write_whole(out, f"# dpfedls run {out}\n{result['toml']}".encode())
    settings = [word for setting in result["set"] for word in ("--set", setting)]
    again = [recipe, *settings] if out is None else [str(out)]
    answer(result, json, "\n".join(_tuned(result, again)))


def _behind(second: dict[str, Any], seeds: int) -> str:
    """Whether the seeds tell the two best apart: a difference of two standard errors does."""
    settings = " ".join(f"{key}={shown(value)}" for key, value in second["settings"].items())
    behind, error = second["behind"], second["error"]
    scale, unit = (100, " points") if second["metric"] == "accuracy" else (1, "")
    said = f"next best: {settings}, {scale * behind:.2g}{unit} behind in {second['metric']}"
    if error is None:
        return f"{said} with one seed, which may be chance: use more --seeds"
    said += f" over {seeds} seeds, standard error {scale * error:.2g}"
    close = behind <= 2 * error
    return f"{said}: too close to call; use more --seeds, or take either" if close else said


def _tuned(result: dict[str, Any], again: list[str]) -> Iterator[str]:
    yield from _lines(result["trials"])
    yield ""
    settings = " ".join(
        f"{key}={shown(value)}" for key, value in result["best"]["settings"].items()
    )
    yield f"best: {settings}, by the task's {result['evaluated_on']} samples"
    if result["next"]:
        yield _behind(result["next"], result["best"]["seeds"])
    if result["evaluated_on"] == "test":
        yield "the task has no validation samples, so the best one's figure is a little too good"
    yield f"run it: {shlex.join(['dpfedls', 'run', *again])}"
    if result["accountant"] != "pld":
        yield (
            f"ε = {shown(result['epsilon'])} is by the recipe's accountant {result['accountant']}; "
            f"dpfedls run states the least bound, here {result['epsilon_by_pld']:.4g}"
        )
    yield result["note"]
    if "price" in result:
        cost = result["price"]
        yield (
            f"price on people's own data: ε = {cost['epsilon']:.4g} at δ = {cost['delta']:.2g}, "
            f"where one run costs {cost['of_one_run']:.4g}: {cost['how']}"
        )


def _check_seeds(seeds: int) -> None:
    if seeds < 1:
        raise InputError(
            f"--seeds must be at least 1, got {seeds}; use 3 or more to see the spread"
        )


@contextmanager
def _showing(rows: Rows, after: str) -> Iterator[Tell]:
    """A live table on a terminal; elsewhere a line for each run, and now and then for a round."""
    try:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(stderr=True), refresh_per_second=4) as live:
                yield _live(rows, live.update)
        else:
            yield _plain_lines()
    except KeyboardInterrupt as interrupt:
        raise Stopped(f"stopped; {after}") from interrupt


def _plain_lines() -> Tell:
    said = time.perf_counter()

    def tell(run: str, news: str, done: bool) -> None:
        nonlocal said
        if done or time.perf_counter() - said > 10:
            said = time.perf_counter()
            print(f"{run}: {news}", file=sys.stderr, flush=True)

    return tell


def _live(rows: Rows, update: Callable[[RenderableType], None]) -> Tell:
    """What runs now, and below it the table: a long one is cut at the end of the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table() -> Table:
        header, cells = _cells(rows())
        made = Table(*header)
        for line in cells:
            made.add_row(*line)
        return made

    under_way: dict[str, str] = {}
    below = table()
    update(below)  # the first round may be a while away

    def tell(run: str, news: str, done: bool) -> None:
        nonlocal below
        under_way[run] = news
        above = "\n".join(f"{run}: {news}" for run, news in under_way.items())
        if done:
            del under_way[run]
            below = table()
        update(Group(Text(above), below))

    return tell


def _lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table as text with columns in line."""
    header, cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *cells]
    ]


def _cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Settings, how many runs, ε of each, every metric as mean ± deviation."""
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    header = [*rows[0]["settings"], "runs", "ε", *names]
    cells = []
    for row in rows:
        runs = f"{row['seeds'] if 'seeds' in row else len(row['runs'])}"
        runs += f", {len(row['failed'])} failed" if row["failed"] else ""
        metrics = [_figure(name, row["metrics"].get(name)) for name in names]
        spent = "∞" if row["epsilon"] is None and row["metrics"] else shown(row["epsilon"] or "–")
        cells.append([*map(shown, row["settings"].values()), runs, spent, *metrics])
    return header, cells


def _figure(name: str, found: dict[str, float | None] | None) -> str:
    if found is None or found["mean"] is None:
        return "–"
    scale, unit = (100, " %") if name == "accuracy" else (1, "")
    deviation = "" if found["std"] is None else f" ± {scale * found['std']:.2g}"
    return f"{scale * found['mean']:.4g}{deviation}{unit}"
