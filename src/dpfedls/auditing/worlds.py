"""Whole runs of a recipe, in folders of their own, with a hostile person in them or without."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from dpfedls.auditing import doors
from dpfedls.auditing.instruments import Crash, Planted, Record, as_trained, observed
from dpfedls.denoising import AnyCallable, Identity
from dpfedls.errors import BudgetExhausted
from dpfedls.parameters import Updates
from dpfedls.people.clients import ClientData
from dpfedls.people.samples import each
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import Result, RoundRecord
from dpfedls.runs.run import Run
from dpfedls.runs.simulate import prepare, simulate
from dpfedls.sampling import Indices
from dpfedls.tasks.task import Task

LENGTHS = (1.0, 1e6, 1.1, 1.0 + 1e-6, 0.5, 3.0, torch.inf, torch.nan)  # of updates, in clip norms
HOSTILE = (1e6, torch.nan, 1.0, torch.inf, 1.1, 0.5, 3.0, 1.0 + 1e-6)  # one person's, in turn
SHAPE = (40, 25)  # of the made-up model, whose rounds are cheap


@dataclass(frozen=True)
class Watched:
    """Rounds as they happened: of what they were made, and what passed inside."""

    recipe: Recipe
    task: Task
    denoiser: AnyCallable
    record: Record


@dataclass(frozen=True)
class World(Watched):
    """A run as it happened, with everything that left."""

    absent: tuple[int, ...]
    folder: Path
    result: Result
    said: str  # log messages of every level, and what was printed
    heard: list[tuple[str, str]]  # what was opened for writing, and sent
    durable: bool  # every look found the ledger's connection waiting for the disk
    ends: bool  # once the rounds are spent, the ledger refuses another


class LedgerLook:
    """A watcher that keeps each state, and says what the ledger lacks when noise is drawn."""

    def __init__(self, record: Record) -> None:
        self.run: Run | None = None
        self.record = record
        self.durable = True

    def refuses_more(self) -> bool:
        """Whether another round is refused now, without a trace."""
        assert self.run is not None
        try:
            self.run.server.ledger.check(self.run.recipe.plan.round_event)
        except BudgetExhausted:
            return True
        return False

    def start(self, run: Run) -> None:
        self.run = run

    def __call__(self, record: RoundRecord) -> None:
        assert self.run is not None
        self.record.end(self.run.state)

    def missing(self, nonces: list[str]) -> str:
        """What is wrong if noise is drawn now for the release with the last of these names."""
        if self.run is None or self.run.folder is None:
            return ""
        folder = self.run.folder
        level = folder.ledger._connection.execute("PRAGMA synchronous").fetchone()[0]
        self.durable &= level >= 2  # FULL, or EXTRA
        # The file itself, not the ledger's word for it: payments are there in plain JSON.
        files = [folder.folder / name for name in ("ledger.sqlite", "ledger.sqlite-wal")]
        kept = b"".join(path.read_bytes() for path in files if path.is_file())
        if not nonces or f'"{nonces[-1]}"'.encode() not in kept:
            return "noise is drawn before its payment is on disk"
        return ""


def run_world(
    recipe: Recipe,
    task: Task,
    denoiser: AnyCallable,
    folder: Path,
    planted: Planted = as_trained,
    absent: tuple[int, ...] = (),
) -> World:
    """The run that ``dpfedls run`` would make, with instruments between its parts.

    In its second round it stops after paying, and goes on from its folder as after a power cut.
    """
    record = Record(crash=1 if recipe.plan.rounds > 2 else None)
    look = LedgerLook(record)
    record.look = look.missing

    def run() -> Result:
        return simulate(
            recipe,
            task,
            copy.deepcopy(denoiser),
            folder,
            [look],
            observe=lambda simulation: observed(simulation, record, planted, absent),
        )

    with _said() as said, doors.watched() as heard:
        try:
            result = run()
        except Crash:
            result = run()
    words = said().replace(str(folder), "RUN")
    ends = look.refuses_more()
    if result.exhausted is not None:  # people trained for a round that was then not paid for
        last = record[record.current]
        if not last.draws and not last.releases:
            del record.rounds[record.current]
    return World(
        recipe, task, denoiser, record, absent, folder, result, words, heard, look.durable, ends
    )


def run_made_up(
    recipe: Recipe, rounds: int, absent: tuple[int, ...] = (), opposite: tuple[int, ...] = ()
) -> Watched:
    """Many cheap rounds of the recipe's plan, in memory; all updates and losses are made up.

    If the plan has more rounds, these are the first of them: what a round asks depends on it.
    """
    plan = msgspec.structs.replace(recipe.plan, rounds=max(rounds, recipe.plan.rounds))
    people = made_up_people(plan.num_clients)
    recipe = msgspec.structs.replace(
        recipe, plan=plan, block_size=7, engine="looped", budget=None, standardise=False,
        rescale=False,
    )  # fmt: skip
    simulation, model = prepare(recipe, people, Identity())
    record = Record()
    engine = replace(simulation.engine, update=_nothing, losses=_made_up_losses(record))
    planted = negated(all_made_up, opposite)
    simulation = observed(replace(simulation, engine=engine), record, planted, absent)
    state = simulation.server.start(simulation.server.layout.read(model))
    for after in islice(simulation.run(state), rounds):
        record.end(after)
    return Watched(recipe, people, Identity(), record)


def made_up_people(num_clients: int) -> Task:
    """People with one to three samples each, so that a weight by samples would show."""
    sizes = 1 + np.arange(num_clients) % 3
    samples = torch.zeros(int(sizes.sum()), SHAPE[0])
    data = ClientData(samples, samples[:, 0].long(), np.cumsum(sizes) - sizes, sizes)
    return Task(data, nn.Linear(*SHAPE))


def all_made_up(clients: Indices, round_: int, norm: float, updates: Updates) -> Updates:
    """Directions from a small bank; in odd rounds all are in the ball or zero, else anything."""
    dim = updates.shape[1]
    bank = _bank(dim)
    own = torch.from_numpy(made_up_lengths(clients, round_) * norm)
    return bank[torch.from_numpy((7 * clients + round_) % len(bank))] * own.float()[:, None]


def made_up_lengths(clients: Indices, round_: int) -> np.ndarray:
    """Of made-up updates, in clip norms."""
    lengths = np.array([0.9, 0.3, 0.999, 1e-4, 0.0] if round_ % 2 else LENGTHS)
    return lengths[(clients + round_) % len(lengths)]


def hostile(person: int) -> Planted:
    """One person sends what suits them best, of another length each time; all others train."""
    turns: dict[int, int] = {}  # by round: the first time, the second, …

    def planted(clients: Indices, round_: int, norm: float, updates: Updates) -> Updates:
        updates = updates.clone()
        direction = _bank(updates.shape[1])[0]
        for place in np.flatnonzero(clients == person):
            turn = turns.setdefault(round_, len(turns))
            updates[place] = direction * (HOSTILE[turn % len(HOSTILE)] * norm)
        return updates

    return planted


def negated(planted: Planted, people: tuple[int, ...]) -> Planted:
    """The same, but these people send the opposite: those who stand in others' places."""

    def opposite(clients: Indices, round_: int, norm: float, updates: Updates) -> Updates:
        sent = planted(clients, round_, norm, updates).clone()
        sent[torch.from_numpy(np.isin(clients, people))] *= -1
        return sent

    return opposite


def altered(task: Task, person: int) -> Task:
    """The same task where one person's samples are others: huge numbers, other tokens and labels.

    People who are loaded one by one (``LazyClients``) stay as they are.
    """
    data = task.data
    if not isinstance(data, ClientData):
        return task
    rows = torch.from_numpy(data.rows(person))

    def change(values: Any) -> Any:
        if not isinstance(values, torch.Tensor) or len(rows) == 0:
            return values
        own, values = values[rows], values.clone()
        if values.is_floating_point():
            values[rows] = torch.where(own < 0, -3e38, 3e38).to(values.dtype)
        elif values.dtype != torch.bool:  # turned round within what there is: always a valid token
            values[rows] = (int(values.min()) + int(values.max()) - own).to(values.dtype)
        return values

    return replace(
        task,
        data=replace(
            data, features=each(change, data.features), targets=each(change, data.targets)
        ),
    )


def _nothing(
    params: Any, clients: Indices, round_: int, key: int, radius: float, pace: float = 1.0
) -> Updates:
    return torch.zeros(len(clients), len(params))


def _made_up_losses(record: Record) -> Callable[[Any, Indices], torch.Tensor]:
    """One person of eight is better off than before: the votes find that learning stalls."""

    def losses(params: Any, clients: Indices) -> torch.Tensor:
        seen = record[record.current]
        if seen.start is None or not torch.equal(params, seen.start):
            return torch.full((len(clients),), 0.5)
        return torch.from_numpy((clients + seen.number) % 8 > 0).float()

    return losses


@cache  # the same in every round
def _bank(dim: int) -> Updates:
    drawn = torch.randn(29, dim, generator=torch.Generator().manual_seed(dim))
    return drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True, dtype=torch.float64).float()


@contextmanager
def _said() -> Iterator[Any]:
    """Everything the package logs meanwhile, at any level, and all that is printed."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(f"{record.levelname} {record.getMessage()}")
    log = logging.getLogger("dpfedls")
    level, others, propagates = log.level, log.handlers, log.propagate
    log.handlers, log.propagate = [handler], False  # people need not hear of crashes that are made
    log.setLevel(logging.DEBUG)
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            yield lambda: "\n".join([*messages, out.getvalue(), errors.getvalue()])
    finally:
        log.setLevel(level)
        log.handlers, log.propagate = others, propagates
