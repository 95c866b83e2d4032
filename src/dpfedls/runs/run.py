"""One loop for every run: train, pay, log, checkpoint; stop at any moment and go on from there.

``dpfedls.train``, ``dpfedls run``, ``resume`` and the Flower strategy all open a ``Run`` and hand
it the function that makes a round.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from dpfedls.denoisers.chain import Chain
from dpfedls.denoising import AnyCallable, denoise
from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.gaussian import Release
from dpfedls.metrics import evaluate
from dpfedls.parameters import PLAIN, Coordinates, Layout, Vector
from dpfedls.privacy.account import Entry
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.privacy.statement import statement
from dpfedls.privacy.wording import diverged
from dpfedls.runs.folder import RunFolder, names_in
from dpfedls.runs.jsonable import plain
from dpfedls.runs.origin import OwnCode
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import Result, RoundRecord, Watch
from dpfedls.runs.seal import STATEMENT
from dpfedls.server import Server, ServerState
from dpfedls.tasks import own
from dpfedls.tasks.task import Task

log = logging.getLogger("dpfedls")


class Diverged(InputError):
    """A model that is not finite: the run has ended, and what it spent is spent."""


@dataclass
class Run:
    """A run under way: the server and its state, what was recorded, where it is kept."""

    recipe: Recipe
    task: Task
    model: nn.Module  # holds the weights that are evaluated and handed out
    server: Server
    state: ServerState
    engine: str  # which one trains, and why
    folder: RunFolder | None
    watch: Sequence[Watch]
    history: list[RoundRecord] = field(default_factory=list)
    unwritten: RoundRecord | None = None  # of a kept round that is still to be evaluated
    _clock: float = field(default_factory=time.perf_counter)

    def through(self, make_round: Callable[[ServerState], ServerState]) -> Result:
        """The rounds that are left, and what the run came to."""
        with ExitStack() as after:
            for watcher in self.watch:
                after.callback(_close, watcher)
            if self.folder is not None:
                after.callback(self.folder.close)
            try:
                exhausted = self._all_rounds(make_round)
            except Diverged:
                if self.folder is not None:  # whoever took part has paid, and may read what
                    facts = self._facts() | diverged(self.state.round)
                    self.folder.seal(None, self.history, facts)
                raise
            return self._sealed(exhausted)

    def _all_rounds(
        self, make_round: Callable[[ServerState], ServerState]
    ) -> BudgetExhausted | None:
        """Make the rounds that are left; the budget if it ended them early."""
        for watcher in self.watch:
            getattr(watcher, "start", lambda _: None)(self)
        self._require_finite()
        try:
            if self.unwritten is not None:
                self._write(self._evaluated(self.unwritten))
            while self.state.round < self.recipe.plan.rounds:
                self._record(make_round(self.state))
        except BudgetExhausted as error:
            return error
        return None

    def check_budget(self, nonce: str) -> None:
        """Raise BudgetExhausted before anybody trains for a round that will not be paid for."""
        event = self.recipe.plan.round_event
        if Entry(self.state.round, event, nonce) not in self._own_ledger.entries:
            self.server.ledger.check(event)

    def _record(self, state: ServerState) -> None:
        """Keep a released round; then evaluate it, write its line, tell those who watch."""
        asks = self.server.bound(self.state).question is not None
        waits = asks or state.params is self.state.params  # its clip norm was far too long
        line = RoundRecord(
            round=state.round,
            epsilon=plain(self._own_ledger.epsilon()),
            clip_norm=plain(self.state.clip_norm),  # the norm that clipped, not the next one
            server_rate=0.0 if waits else self.server.step(self.state),
        )
        self.state = state
        try:
            self._require_finite()
        except Diverged:
            self._write(line)
            raise
        line = self._evaluated(line)
        clock, self._clock = self._clock, time.perf_counter()
        if self.recipe.mode == "simulation":
            line = msgspec.structs.replace(line, seconds=self._clock - clock)
        self._write(line)

    def _write(self, line: RoundRecord) -> None:
        if self.folder is not None:
            self.folder.record(line, self.state)
        self.history.append(line)
        for watcher in self.watch:
            watcher(line)

    def _evaluated(self, line: RoundRecord) -> RoundRecord:
        """The line with metrics, where they are due; whatever stops this, the round is kept.

        A deployed round is kept first, since a kill would have it paid for again.
        """
        due = self.state.round % self.recipe.evaluate_every == 0
        if self.task.test is None or not (due or self._is_last):
            return line
        if self.folder is not None and self.recipe.mode == "deployed":
            self.folder.keep(line, self.state)
        try:
            self.server.layout.write(self.state.average, self.model)
            found = evaluate(self.model, self.task.test, self.task.loss, self.task.metrics)
        except BaseException:
            if self.folder is not None and self.recipe.mode == "simulation":
                self.folder.keep(line, self.state)
            raise
        metrics = plain(found)
        first = {"accuracy": metrics.get("accuracy"), "loss": metrics.get("loss")}
        return msgspec.structs.replace(line, **first, metrics=metrics)

    def _require_finite(self) -> None:
        if not torch.isfinite(self.state.params).all():
            elsewhere = ""
            if self.folder is not None:
                elsewhere = (
                    f" in another folder; {self.folder.folder / STATEMENT} says what was spent"
                )
            raise Diverged(
                f"the model of round {self.state.round} is not finite: training diverged and the "
                "run has ended, no further round is paid for; lower the learning rate or "
                f"server_rate in a new run{elsewhere}"
            )

    @property
    def _is_last(self) -> bool:
        """Whether no round follows: the plan has no more, or the budget covers no other."""
        if any(entry.round == self.state.round for entry in self._own_ledger.entries):
            return False  # it is paid for already, and run again at no new cost
        try:
            self.server.ledger.check(self.recipe.plan.round_event)
        except BudgetExhausted:
            return True
        return self.state.round == self.recipe.plan.rounds

    def _sealed(self, exhausted: BudgetExhausted | None) -> Result:
        """Write the last model, the statement and the report, and give the folder free."""
        self.server.layout.write(self.state.average, self.model)
        if self.task.test is not None and self.history and not self.history[-1].metrics:
            # Known only now: a crash, or another run of the population, took the round that was
            # to follow, and a line of the log is not altered once a payment holds its digest.
            log.warning("the last model was not evaluated: metrics are of an earlier round's")
        facts = self._facts()
        if self.folder is not None:
            self.folder.seal(self.model, self.history, facts)
        folder = None if self.folder is None else self.folder.folder
        return Result(self.model, self.recipe, self.history, facts, self.engine, folder, exhausted)

    def _facts(self) -> dict[str, Any]:
        return statement(
            self.recipe.plan,
            mode=self.recipe.mode,
            ledger="memory" if self.folder is None else "durable",
            rounds_paid=len(self._own_ledger.entries),
            ledger_head=None if self.folder is None else self.folder.ledger.head,
            most_samples=getattr(self.task.data, "most_samples", None),
            test_from=self.task.test_from or None,
            nodes=self.recipe.nodes,
        )

    @property
    def _own_ledger(self) -> MemoryLedger:
        """What this run has spent; a population's ledger may stand before it."""
        ledger = self.server.ledger if self.folder is None else self.folder.ledger
        assert isinstance(ledger, MemoryLedger)
        return ledger


def server_for(
    recipe: Recipe, model: nn.Module, denoiser: AnyCallable, coordinates: Coordinates = PLAIN
) -> Server:
    """The server that a recipe asks for, with a ledger in memory until a folder lends its own.

    Its denoiser is tried: one that fails, fails before a round is paid for.
    """
    if recipe.server_rate == "auto":
        raise InputError(
            'server_rate = "auto" is chosen from model and samples, and the server of a federation '
            "holds no samples; give a number, or take it, and [local], from the recipe.toml of a "
            "run that dpfedls run or dpfedls.train made with this model with standardise = false "
            "and rescale = false"
        )
    ledger = MemoryLedger(recipe.plan, recipe.budget)
    server = Server(
        recipe.plan,
        denoiser,
        Layout.of(model),
        ledger,
        rate=recipe.server_rate,
        averaging=recipe.averaging,
        schedule=recipe.schedule,
        shorten=recipe.local.shorten,
        coordinates=coordinates,
    )
    _try_denoiser(server, server.layout.read(model))
    return server


def _try_denoiser(server: Server, params: Vector) -> None:
    """Denoise zeros, which an empty cohort without noise would release.

    By a copy: a person's own denoiser may count its calls, say. One that cannot be copied is not
    tried.
    """
    try:
        server = replace(server, denoiser=copy.deepcopy(server.denoiser))
    except Exception:
        return
    try:
        state = server.start(params)
        norm, cohort = state.clip_norm, server.plan.expected_cohort
        deviation = server.plan.noise_stddev(norm) / cohort
        zeros = Release(torch.zeros_like(params), deviation, server.layout, clip_norm=norm)
        _, memory = denoise(server.denoiser, zeros, state.memory)
        if memory.keys() != state.memory.keys():
            raise InputError(
                f"denoiser = {own.name_of(server.denoiser)} remembers {names_in(memory)} after a "
                f"release, but its start() gives {names_in(state.memory)}: such a run could not be "
                "resumed; give all that it remembers in start(), zeros for instance"
            )
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"denoiser = {own.name_of(server.denoiser)} fails on a release of zeros "
            f"({type(error).__name__}: {error}); nothing was trained"
        ) from error


def open_run(
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    server: Server,
    engine: str,
    folder: Path | None,
    watch: Sequence[Watch] = (),
) -> Run:
    """The run of a folder, new or where it was left; without a folder, in memory."""
    start = server.start(server.layout.read(model))
    if folder is None:
        return Run(recipe, task, model, server, start, engine, None, watch)
    kept = RunFolder(folder, recipe)
    try:
        server = replace(server, ledger=kept.account)
        recipe = msgspec.structs.replace(recipe, chosen=kept.recipe.chosen)
        state = kept.last_state(start)
        run = Run(recipe, task, model, server, state, engine, kept, watch)
        run.history, run.unwritten = kept.trimmed(), kept.unwritten
        kept.note(_notes(run))
    except BaseException:
        kept.ledger.close()
        raise
    return run


def _close(watcher: Watch) -> None:
    """The run is over and kept: a watcher that cannot end its own work changes nothing in it."""
    try:
        getattr(watcher, "close", lambda: None)()
    except Exception as error:
        name = own.name_of(watcher)
        log.error("%s failed to close (%s: %s)", name, type(error).__name__, error)


def _notes(run: Run) -> dict[str, Any]:
    """What made the run. Of own code its name and the digest of its file, and no value it holds.

    Loss, metrics, model and task see private samples, and may keep what they saw.
    """
    denoiser, task = run.server.denoiser, run.task
    steps = denoiser.steps if isinstance(denoiser, Chain) else (denoiser,)
    code = [("loss", task.loss, None), *((key, each, None) for key, each in task.metrics.items())]
    code += [("denoiser", step, own.settings_digest(step)) for step in steps]
    if own.is_own(run.recipe.task):
        code.append(("task", own.load(run.recipe.task, "task"), None))
    if not own.name_of(run.model).startswith("torch."):
        code.append(("model", type(run.model), None))
    return {
        "engine": run.engine,
        "model": {"class": own.name_of(run.model), "parameters": run.server.layout.dim},
        "own_code": [
            OwnCode(key, own.name_of(thing), own.source_digest(thing), settings)
            for key, thing, settings in code
            if not own.name_of(thing).startswith("dpfedls.")
        ],
    }
