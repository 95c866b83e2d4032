"""A run's folder: opened anew or where it was left, written round by round, sealed at the end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from safetensors.torch import save as save_model
from torch import nn

from dpfedls.denoising import Memory
from dpfedls.errors import InputError
from dpfedls.parameters import Layout
from dpfedls.privacy import bounded
from dpfedls.privacy.durable import (
    alone_in,
    append,
    is_temporary,
    make_folder,
    sync_folder,
    write_whole,
)
from dpfedls.privacy.ledger import SqliteLedger
from dpfedls.privacy.population import JointLedger, Population, account_path
from dpfedls.privacy.stall import Votes
from dpfedls.runs import recipes
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.evidence import is_sealed, require_ledger, require_paid
from dpfedls.runs.log import next_head
from dpfedls.runs.model_file import model_metadata
from dpfedls.runs.origin import noted, origin
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord
from dpfedls.runs.report import write_report
from dpfedls.runs.seal import seal
from dpfedls.runs.writing_behind import Writer, WrittenFirst
from dpfedls.server import ServerState

log = logging.getLogger("dpfedls")
Line = TypeVar("Line")


class RunFolder:
    """One run's folder, held by one process: its ledger, the last released state, its log."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self._writer = folder, Writer()
        shared = _population(recipe, require_own(folder, recipe))  # before any file is made
        make_folder(folder)
        with alone_in(folder):  # from looking to holding the ledger nobody else begins here
            if not require_own(folder, recipe):
                write_whole(folder / "recipe.toml", recipes.encode(recipe).encode())
            self.recipe = read_recipe(folder)  # a report is made of what stands in the folder
            require_ledger(folder)
            self._sealed = is_sealed(folder)  # asked before the ledger is ours: see hash_chain.py
            digest = bounded.file_digest(folder / "recipe.toml")
            budget = recipe.budget if shared is None else None  # else it is the population's
            self.ledger = SqliteLedger(folder / "ledger.sqlite", recipe.plan, budget, digest)
        try:
            if shared is not None:
                shared.require_paid(self.ledger)
            account = self.ledger if shared is None else JointLedger(self.ledger, shared)
            self.account = WrittenFirst(account, self._writer)
            self._found = Checkpoint.load(folder) if (folder / FILE).is_file() else None
            self._rounds = read_rounds(folder)
            self._heads = require_paid(
                folder, self.ledger, self.account, self._found, self._rounds, recipe.mode
            )
            _remove_temporary(folder)  # nobody else is at work here: the ledger is ours
        except BaseException:
            self.ledger.close()
            raise

    def last_state(self, start: ServerState) -> ServerState:
        """The state of the checkpoint, or ``start`` where no round was released yet."""
        found, state = self._found, start
        if found is not None:
            expected = _remembered(start)
            remembered = found.memory.keys() - {EXCEEDED}
            if len(found.params) != len(start.params) or remembered != expected.keys():
                kept, given = names_in(found.memory), names_in(expected)
                raise InputError(
                    f"{self.folder} holds the run of another model or denoiser: it has "
                    f"{len(found.params)} weights and remembers {kept}, and these have "
                    f"{len(start.params)} and {given}; give the same ones, or another folder"
                )
            device = start.params.device
            tensor = lambda values: torch.from_numpy(values.copy()).to(device)  # noqa: E731
            every = {name: tensor(values) for name, values in found.memory.items()}
            state = ServerState(
                round=found.round,
                params=tensor(found.params),
                average=tensor(found.average),
                clip_norm=found.clip_norm,
                memory={name: every[name] for name in start.memory},
                votes=start.votes and _votes(every),
                survey={name: every[_UNITS + name].cpu() for name in start.survey},
                exceeded=float(every[EXCEEDED]) if EXCEEDED in every else 0.0,
            )
        self._say_what_was_lost(state.round)
        return state

    def trimmed(self) -> list[RoundRecord]:
        """The log as far as the checkpoint knows it; what a crash left behind it is made again."""
        last = 0 if self._found is None else self._found.lines
        rounds = self._rounds[:last]
        if not self._sealed:
            write_whole(self.folder / "rounds.jsonl", b"".join(map(_encoded, rounds)))
        self.ledger.log = self._heads[last]
        return rounds

    @property
    def unwritten(self) -> RoundRecord | None:
        """The line of a round that was kept, and stopped while it was evaluated."""
        if self._found is None or not self._found.unwritten:
            return None
        return msgspec.json.decode(self._found.unwritten, type=RoundRecord)

    def note(self, facts: dict[str, Any]) -> None:
        """Keep what made the run beside it: engine, own code, model, day and commit.

        A run may go on with other code, a mended loss, say: ε does not depend on it, and a new run
        would be paid for again. Both are named then, the one at work last.
        """
        path = self.folder / "notes.json"
        before, now = noted(path), facts["own_code"]
        if before.started and before.own_code[len(before.own_code) - len(now) :] != now:
            other = [code.used_as for code in now if code not in before.own_code]
            log.warning(
                "%s was made with other code of your own than is given now (%s)%s",
                self.folder,
                ", ".join(dict.fromkeys(other)) or "less of it, or in another order",
                "" if self._sealed else "; it goes on with the new, and its notes name both",
            )
        if self._sealed:
            return
        every = [*(code for code in before.own_code if code not in now), *now]
        values = facts | {"own_code": every} | origin(path)
        write_whole(
            path, json.dumps(msgspec.to_builtins(values), indent=2, ensure_ascii=False).encode()
        )

    def keep(self, line: RoundRecord, state: ServerState) -> None:
        """Write a released round before it is evaluated; ``record`` then writes its line."""
        kept = self._checkpoint(state, msgspec.json.encode(line).decode())
        self._write(lambda: kept.save(self.folder))

    def record(self, line: RoundRecord, state: ServerState) -> None:
        """Write a released round: the log's line first, then the checkpoint it is found by.

        Each is on disk before the next is begun, so a power cut leaves no checkpoint without line.
        Both are there when this returns if the run is deployed, else before the next payment.
        """
        encoded = _encoded(line)
        self.ledger.log = next_head(self.ledger.log, encoded)
        kept = self._checkpoint(state)

        def write() -> None:
            append(self.folder / "rounds.jsonl", encoded)
            kept.save(self.folder)

        self._write(write)

    def _checkpoint(self, state: ServerState, unwritten: str = "") -> Checkpoint:
        params, average = state.params.cpu().numpy(), state.average.cpu().numpy()
        memory = {name: tensor.cpu().numpy() for name, tensor in _remembered(state).items()}
        heads = (self.ledger.head, self.ledger.log)
        return Checkpoint(state.round, params, average, state.clip_norm, memory, *heads, unwritten)

    def _write(self, write: Callable[[], None]) -> None:
        self._writer.begin(write)
        if self.recipe.mode == "deployed":  # a lost checkpoint would be paid for again
            self._writer.finish()
            sync_folder((self.folder / FILE).parent)

    def close(self) -> None:
        """Give the folder free for others, once all is written."""
        try:
            self._writer.finish()
        finally:
            self.ledger.close()

    def seal(
        self, model: nn.Module | None, rounds: list[RoundRecord], facts: dict[str, Any]
    ) -> None:
        """Close the folder's account; write model, statement and report, unless they stand."""
        self.close()
        if self._sealed:
            return
        folder, recipe = self.folder, self.recipe
        if model is not None:
            tensors = {n: t.detach().cpu().contiguous() for n, t in model.named_parameters()}
            described = model_metadata(recipe.mode, Layout.of(model).names)
            write_whole(folder / "model.safetensors", save_model(tensors, described))
        write_report(folder, recipe, rounds, facts)
        seal(folder, facts)  # last: it holds a digest of everything else, the report included

    def _say_what_was_lost(self, round_: int) -> None:
        """A crash between paying and checkpointing loses a release; nobody should have to guess."""
        lost = sorted({e.round + 1 for e in self.ledger.entries if e.round >= round_})
        if lost:
            again = "at no new cost, with the same noise"
            log.warning(
                "rounds %s were paid for and then lost in a crash; they are run again %s",
                ", ".join(map(str, lost)),
                again if self.recipe.mode == "simulation" else "and paid again",
            )


def require_own(folder: Path, recipe: Recipe) -> bool:
    """Whether a run of this recipe has begun there; refuse whatever else the folder holds."""
    if is_free(folder):
        return False
    if not (folder / "recipe.toml").is_file():
        raise InputError(
            f"{folder} already holds files; nothing was touched: choose another folder"
        )
    if keys := recipes.differing(read_recipe(folder), recipe):
        raise InputError(
            f"{folder} holds the run of another recipe, which differs in {', '.join(keys)}; to go "
            f"on with it give what {folder / 'recipe.toml'} says, or choose another folder for a "
            "new run"
        )
    return True


def _population(recipe: Recipe, begun: bool) -> Population | None:
    """The account that the run shares with others; one that has begun never makes it anew.

    It is made before the run's folder is, so a folder without it has lost it. A budget is said at
    the δ of the run that says it; without one, the account's own budget and δ hold.
    """
    if recipe.population is None:
        return None
    path = account_path(recipe.population)
    if begun or recipe.budget is None:
        return Population(path)
    return Population(path, recipe.budget, recipe.plan.delta)


def path_of(given: Any, name: str, such_as: str = "runs/mine") -> Path:
    """The path that somebody gave as the argument of that name."""
    if not isinstance(given, str | PathLike) or not str(given):
        raise InputError(f'{name} = {given!r} is no path; give one such as {name}="{such_as}"')
    return Path(given)


def is_free(folder: Path) -> bool:
    """Whether a run may begin there: absent, or a folder with nothing but what a crash left."""
    require_folder(folder)
    free = not folder.exists() or all(map(is_temporary, folder.iterdir()))
    if free:
        require_outside_runs(folder)
    return free


def require_outside_runs(path: Path) -> None:
    """Refuse to write anything into a run's folder, which is evidence of what it spent."""
    for folder in path.resolve().parents:
        if (folder / "recipe.toml").is_file() and (folder / "ledger.sqlite").is_file():
            raise InputError(
                f"{path} lies in the run folder {folder}, whose files are evidence of what was "
                "spent; nothing was touched: choose a place outside it"
            )


def require_folder(folder: Path) -> None:
    """Refuse a file where a folder is to be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder; nothing was touched: choose another")


def read_recipe(folder: Path, settings: list[str] | None = None) -> Recipe:
    """The resolved recipe of a run folder, with ``key=value`` settings overriding it."""
    path = folder / "recipe.toml"
    if not path.is_file():
        raise InputError(
            f"{folder} is not a run folder: it has no recipe.toml; give the folder that "
            "dpfedls run printed"
        )
    return recipes.read(str(path), settings)


def read_rounds(folder: Path) -> list[RoundRecord]:
    """The lines of rounds.jsonl."""
    return read_lines(folder / "rounds.jsonl", RoundRecord)


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """The lines of a log, none if it is absent; a last one that a crash cut short is left out."""
    raw = bounded.read_bounded(path, bounded.LOG) if path.is_file() else b""
    lines = raw.splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number < len(lines):
                raise InputError(
                    f"{path}, line {number} cannot be read ({error}); restore it from a backup"
                ) from error
    return found


def names_in(memory: Mapping[str, object]) -> str:
    """What a denoiser remembers, by name."""
    return ", ".join(map(repr, sorted(memory))) or "nothing"


def _encoded(line: RoundRecord) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _remove_temporary(folder: Path) -> None:
    for place in (folder, (folder / FILE).parent):
        for path in filter(is_temporary, place.glob(".*")):
            path.unlink(missing_ok=True)


_OLDER, _NEWER, _SAID, _UNITS = "votes.older", "votes.newer", "votes.said", "units."
EXCEEDED = "clip_norm.exceeded"  # of a state, by its name in a checkpoint


def _remembered(state: ServerState) -> Memory:
    """All that a state remembers beside its model, by name: of a denoiser, units, and votes."""
    memory = state.memory | {_UNITS + name: values for name, values in state.survey.items()}
    if state.exceeded:
        memory |= {EXCEEDED: torch.tensor(state.exceeded, dtype=torch.float64)}
    if state.votes is None:
        return memory
    older, newer, *said = state.votes
    said = torch.tensor(said, dtype=torch.float64)
    return memory | {_OLDER: older, _NEWER: newer, _SAID: said}


def _votes(remembered: Memory) -> Votes:
    total, count, stalled = remembered[_SAID].tolist()
    return Votes(remembered[_OLDER], remembered[_NEWER], total, int(count), bool(stalled))
