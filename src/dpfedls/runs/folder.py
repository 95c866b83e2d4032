"""A run's folder: opened anew or where it was left, written round by round, sealed at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from safetensors.torch import save as save_model
from torch import nn

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.runs import recipe as recipes
from dpfedls.runs.checkpoint import FILE, Checkpoint, write_whole
from dpfedls.runs.jsonable import plain
from dpfedls.runs.model_file import model_metadata
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.report import write_report
from dpfedls.runs.seal import file_digest, seal
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import Entry, MemoryLedger, SqliteLedger
from dpfedls.privacy.statement import statement
from dpfedls.server import Server, ServerState

log = logging.getLogger("dpfedls")


class RoundLog(msgspec.Struct, frozen=True):
    """A line of rounds.jsonl; without noise there is no finite ε, and JSON says null."""

    round: int
    epsilon: float | None
    accuracy: float | None
    loss: float | None
    seconds: float | None  # not when deployed: time follows the cohort's size, which is private


Line = TypeVar("Line")
Watch = Callable[[RoundLog], None]


class Outcome(NamedTuple):
    """What a run came to, and whether the budget ended it early."""

    summary: dict[str, Any]
    exhausted: BudgetExhausted | None


class RunFolder:
    """One run's folder, held by one process: its ledger, the last released state, its log."""

    def __init__(self, folder: Path, recipe: Recipe, server: Server, model: nn.Module) -> None:
        """``server`` says how rounds end; here it gets the ledger of this folder."""
        self.folder, self.model = folder, model
        self.recipe = open_folder(folder, recipe)
        ledger, state = folder / "ledger.sqlite", folder / FILE
        if state.is_file() and not ledger.is_file():
            raise InputError(
                f"{ledger} is missing although rounds were released; what was spent cannot be "
                "known without it: restore it from a backup, or start a new run"
            )
        digest = file_digest(folder / "recipe.toml")
        self.ledger = SqliteLedger(ledger, self.recipe.plan, self.recipe.budget, digest)
        try:
            self.server = replace(server, ledger=self.ledger)
            self.state = self._last_state()
            self.rounds = self._trimmed()
            self._say_what_was_lost()
        except BaseException:
            self.ledger.close()
            raise
        self._clock, self._seconds = time.perf_counter(), []

    def check_budget(self, nonce: str) -> None:
        """Raise BudgetExhausted before anybody trains for a round that will not be paid for."""
        event = self.recipe.plan.round_event
        if Entry(self.state.round, event, nonce) not in self.ledger.entries:
            self.ledger.check(event)

    def record(
        self, state: ServerState, accuracy: float | None = None, loss: float | None = None
    ) -> RoundLog:
        """Note a released round: the log's line first, then the checkpoint it will be found by."""
        now = time.perf_counter()
        self._seconds.append(now - self._clock)
        self._clock = now
        shown = self._seconds[-1] if self.recipe.mode == "simulation" else None
        line = RoundLog(state.round, plain(self.ledger.epsilon()), accuracy, loss, shown)
        with (self.folder / "rounds.jsonl").open("ab") as lines:
            lines.write(msgspec.json.encode(line) + b"\n")
        params, average = state.params.cpu().numpy(), state.average.cpu().numpy()
        Checkpoint(state.round, params, average, self.ledger.head).save(self.folder)
        self.state = state
        self.rounds.append(line)
        return line

    def seal(self) -> dict[str, Any]:
        """Close the ledger; write model, statement and report; what ``dpfedls run`` answers."""
        paid, head = len(self.ledger.entries), self.ledger.head
        self.ledger.close()
        folder, recipe = self.folder, self.recipe
        self.server.layout.write(self.state.average, self.model)
        tensors = {n: t.detach().cpu().contiguous() for n, t in self.model.named_parameters()}
        described = model_metadata(recipe.mode, self.server.layout.names)
        write_whole(folder / "model.safetensors", save_model(tensors, described))
        facts = statement(recipe.plan, mode=recipe.mode, rounds_paid=paid, ledger_head=head)
        write_report(folder, recipe, self.rounds, facts)
        seal(folder, facts)  # last: it holds a digest of everything else, the report included
        seconds = [s for s in (line.seconds for line in self.rounds) if s is not None]
        return summary(folder, recipe, self.rounds, facts, seconds or self._seconds)

    def close(self) -> None:
        """Give the folder free for another process, as it is."""
        self.ledger.close()

    def _last_state(self) -> ServerState:
        if not (self.folder / FILE).is_file():
            return self.server.start(self.server.layout.read(self.model))
        found = Checkpoint.load(self.folder)
        paid = {entry.round for entry in self.ledger.entries}
        if found.ledger_head not in self.ledger.heads or not paid >= set(range(found.round)):
            raise InputError(
                f"{self.folder}: the checkpoint holds {found.round} rounds that this ledger does "
                "not know; going on would release what was never paid for: restore the ledger "
                "that belongs to it, with its -wal file, from a backup"
            )
        device = next(self.model.parameters()).device
        tensors = (torch.from_numpy(a.copy()).to(device) for a in (found.params, found.average))
        return ServerState(found.round, *tensors)

    def _trimmed(self) -> list[RoundLog]:
        """The log up to the checkpoint; what a crash left behind it will be run again."""
        rounds = [line for line in read_rounds(self.folder) if line.round <= self.state.round]
        lines = b"".join(msgspec.json.encode(line) + b"\n" for line in rounds)
        write_whole(self.folder / "rounds.jsonl", lines)
        return rounds

    def _say_what_was_lost(self) -> None:
        """A crash between paying and checkpointing loses a release; nobody should have to guess."""
        lost = sorted({e.round + 1 for e in self.ledger.entries if e.round >= self.state.round})
        if lost:
            again = "at no new cost, with the same noise"
            log.warning(
                "rounds %s were paid for and then lost in a crash; they are run again %s",
                ", ".join(map(str, lost)),
                again if self.recipe.mode == "simulation" else "and paid again",
            )


def server_for(recipe: Recipe, layout: Layout) -> Server:
    """The server that a recipe asks for, with a ledger in memory until a folder lends its own."""
    ledger = MemoryLedger(recipe.plan, recipe.budget)
    return Server(
        recipe.plan, recipe.denoiser, layout, ledger, recipe.server_rate, recipe.averaging
    )


def open_folder(folder: Path, recipe: Recipe) -> Recipe:
    """The resolved recipe of a new folder, or of one that holds a run of the very same recipe."""
    if is_free(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "recipe.toml", recipes.encode(recipe).encode())
    elif read_recipe(folder) != recipe:
        raise InputError(
            f"{folder} holds the run of another recipe; a promise is not edited: choose another "
            "folder, or take the recipe from the folder to go on with its run"
        )
    return recipe


def is_free(folder: Path) -> bool:
    """Whether a run may begin there: absent, or an empty folder."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder; nothing was touched: choose another")
    return not any(folder.iterdir())


def read_recipe(folder: Path) -> Recipe:
    """The resolved recipe of a run folder."""
    path = folder / "recipe.toml"
    if not path.is_file():
        raise InputError(
            f"{folder} is not a run folder: it has no recipe.toml; give the folder that "
            "dpfedls run printed"
        )
    return recipes.read(str(path))


def read_rounds(folder: Path) -> list[RoundLog]:
    """The lines of rounds.jsonl."""
    return read_lines(folder / "rounds.jsonl", RoundLog)


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """The lines of a log, none if it is absent; a last one that a crash cut short is left out."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError as error:
            if number < len(lines):
                raise InputError(
                    f"{path}, line {number} cannot be read ({error}); restore it from a backup"
                ) from error
    return found


def summary(
    folder: Path,
    recipe: Recipe,
    rounds: list[RoundLog],
    facts: dict[str, Any],
    seconds: list[float],
) -> dict[str, Any]:
    """What ``dpfedls run`` and ``resume`` answer."""
    judged = [line for line in rounds if line.loss is not None]
    return {
        "run": str(folder),
        "task": recipe.task,
        "rounds": len(rounds),
        "accuracy": judged[-1].accuracy if judged else None,
        "loss": judged[-1].loss if judged else None,
        "epsilon": facts["epsilon"],
        "delta": facts["delta"],
        "accountant": facts["accountant"],
        "noise_multiplier": recipe.plan.noise_multiplier,
        "strength": getattr(recipe.denoiser, "strength", 0.0),
        "seconds_per_round": sum(seconds) / len(seconds) if seconds else None,
        "private": recipe.plan.is_private,
        "mode": recipe.mode,
        "seed": recipe.seed,
    }
