"""The runs that items need: each made once, several at a time, continued where it stopped."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dpfedls.auditing.diagnostics import read_diagnostics, watchers
from dpfedls.errors import InputError
from dpfedls.paper.data import describe
from dpfedls.paper.item import Options, RunsFailed
from dpfedls.paper.provenance import Origin, duration, origin, read_origins, sign
from dpfedls.runs import recipes
from dpfedls.runs.folder import is_free, read_recipe, read_rounds
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord, Watch, summary
from dpfedls.runs.seal import is_finished
from dpfedls.runs.side_by_side import Job, SideBySide
from dpfedls.runs.simulate import find_device, resume, start

log = logging.getLogger("dpfedls")


@dataclass(frozen=True)
class Cell:
    """A recipe with settings that override it: one number of a table, one line of a figure."""

    recipe: str  # name of a recipe
    settings: tuple[str, ...] = ()  # key=value that override it
    rank: int = 0  # cells of a lower one are run first, with all their seeds


@dataclass(frozen=True)
class Run:
    """A cell with one seed, finished."""

    folder: Path
    summary: dict[str, Any]  # what ``dpfedls run`` answers
    rounds: list[RoundRecord]
    diagnostics: list[dict[str, Any]]  # lines of diagnostics.jsonl, [] if none
    origins: list[Origin]  # what made it


@dataclass(frozen=True)
class _Job(Job):
    folder: Path
    rank: int


def run_cells(cells: Sequence[Cell], options: Options) -> list[list[Run]]:
    """For each cell one finished run a seed, in folders named by what they hold.

    Guarantees: equal runs, of this item or another one, are made once; a finished folder is not
    touched, a half-finished one is resumed; one that fails does not stop the others. With
    ``options.finished`` nothing is trained, and a cell has the seeds that were: perhaps none.
    """
    wanted = [[_job(cell, seed, options) for seed in range(options.seeds)] for cell in cells]
    if options.finished:
        return [[read_run(job.folder) for job in row if is_finished(job.folder)] for row in wanted]
    jobs = {job.folder: job for row in wanted for job in row}
    # Seed by seed: a task whose data are slow to make keeps those of the last seed.
    ordered = sorted(jobs.values(), key=lambda job: (job.rank, job.recipe.seed))
    waiting = [job for job in ordered if not is_finished(job.folder)]
    if waiting:  # runs that came from another machine are read where its device is not
        find_device(options.device)
    progress = _Progress(options.say, len(jobs), len(jobs) - len(waiting))
    failures: dict[str, Exception] = {}
    with SideBySide(options.jobs) as runs:
        for job, failure in runs.outcomes(_make, waiting, progress.round):
            if failure is not None:
                failures[job.name] = failure
                if not isinstance(failure, InputError):
                    log.error("%s failed", job.name, exc_info=failure)
            progress.finished(job, failed=failure is not None)
    if failures:
        raise _explained(failures, len(jobs))
    return [[read_run(job.folder) for job in row] for row in wanted]


def resolve(cell: Cell, seed: int, options: Options) -> Recipe:
    """The recipe of a cell: its own settings, those that override all, device and seed."""
    last = [f'device="{options.device}"', f"seed={seed}"]
    return recipes.read(cell.recipe, [*cell.settings, *options.settings, *last])


def read_run(folder: Path) -> Run:
    """A finished run as its folder tells it."""
    rounds = read_rounds(folder)
    facts = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    found = summary(folder, read_recipe(folder), rounds, facts)
    judged = [msgspec.to_builtins(line) for line in read_diagnostics(folder)]
    return Run(folder, found, rounds, judged, read_origins(folder))


def _job(cell: Cell, seed: int, options: Options) -> _Job:
    recipe = resolve(cell, seed, options)
    folder = options.out / "runs" / f"{Path(cell.recipe).stem}-{recipes.fingerprint(recipe)}"
    return _Job(" ".join([cell.recipe, *cell.settings, f"seed={seed}"]), recipe, folder, cell.rank)


def _make(job: _Job, watch: Watch) -> None:
    unsigned, clients = True, job.recipe.plan.num_clients

    def noted(line: RoundRecord) -> None:
        nonlocal unsigned
        if unsigned:  # not before the first round: a folder must be empty for a run to begin
            by, data = origin(job.recipe.device), describe(job.recipe.task, clients)
            sign(job.folder, replace(by, since=line.round, data=data))
            unsigned = False
        watch(line)

    watching = [*watchers(job.recipe, job.folder), noted]
    if is_free(job.folder):
        start(job.recipe, job.folder, watching)
    else:
        resume(job.folder, watching)


def _explained(failures: dict[str, Exception], total: int) -> Exception:
    """One line: how many, and the first by name; wrong input where they all were that."""
    name, first = next(iter(failures.items()))
    kind = InputError if all(isinstance(f, InputError) for f in failures.values()) else RunsFailed
    what = str(first) if isinstance(first, InputError) else f"{type(first).__name__}: {first}"
    counted = f"{len(failures)} of {total} runs failed, the others are finished and kept"
    return kind(f"{counted}; {name}: {what}")


@dataclass
class _Progress:
    """Runs done of all, and the time left by the pace so far."""

    say: Callable[[str], None]
    total: int
    done: int
    parts: dict[str, float] = field(default_factory=dict)  # of the runs under way, by name

    def __post_init__(self) -> None:
        self.before, self.began = self.done, time.perf_counter()
        self.said = self.began
        if self.before:
            self.say(f"{self.before}/{self.total} runs are there already")

    def finished(self, job: _Job, failed: bool) -> None:
        """Say that a run ended."""
        self.done += 1
        self.parts.pop(job.name, None)
        self._say(f"{job.name}{' FAILED' if failed else ''}")

    def round(self, job: _Job, line: RoundRecord) -> None:
        """Say now and then how far a long run is."""
        rounds = job.recipe.plan.rounds
        self.parts[job.name] = line.round / rounds
        if time.perf_counter() - self.said > 10:
            self._say(f"{job.name}, round {line.round}/{rounds}")

    def _say(self, note: str) -> None:
        self.said = time.perf_counter()
        part = sum(self.parts.values())
        here = self.done - self.before + part
        left = ""
        if here >= 0.5:  # before that it would tell how long processes take to start
            seconds = (self.said - self.began) / here * (self.total - self.done - part)
            left = f", about {duration(seconds)} left"
        self.say(f"{self.done}/{self.total} runs{left}: {note}")
