"""One run, one folder: train, log, checkpoint, pay; stop at any moment and go on from there."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import save as save_model

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.evaluation import evaluate
from dpfedls.experiments import recipe as recipes
from dpfedls.experiments.checkpoint import FILE, Checkpoint, write_whole
from dpfedls.experiments.recipe import Recipe
from dpfedls.experiments.report import write_report
from dpfedls.experiments.verify import file_digest
from dpfedls.local_update import cross_entropy
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import SqliteLedger
from dpfedls.privacy.statement import statement
from dpfedls.randomness import RandomStreams, SeededStreams, SystemStreams
from dpfedls.server import Server, ServerState
from dpfedls.simulation import federate, trainable_copy
from dpfedls.tasks.task import make_task

log = logging.getLogger("dpfedls")


class RoundLog(msgspec.Struct, frozen=True):
    """A line of rounds.jsonl."""

    round: int
    epsilon: float
    accuracy: float | None
    loss: float | None
    seconds: float


class Outcome(NamedTuple):
    """What a run came to, and whether the budget ended it early."""

    summary: dict[str, Any]
    exhausted: BudgetExhausted | None


Watch = Callable[[RoundLog], None]


def start(recipe: Recipe, folder: Path, watch: Watch = lambda _: None) -> Outcome:
    """Run a recipe in an empty or absent folder."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder} already holds files, perhaps another run's; nothing was touched: choose "
            f"another --out, or go on with it by: dpfedls resume {folder}"
        )
    recipe = recipe.resolved()
    prepared = _prepare(recipe)  # whatever is wrong with the input is found before a file is made
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "recipe.toml", recipes.encode(recipe).encode())
    return _proceed(folder, recipe, prepared, watch)


def resume(folder: Path, watch: Watch = lambda _: None) -> Outcome:
    """Go on with the run of a folder after the last round in its checkpoint."""
    recipe = read_recipe(folder)
    return _proceed(folder, recipe, _prepare(recipe), watch)


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
    """The lines of rounds.jsonl that were written whole."""
    path = folder / "rounds.jsonl"
    rounds = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            rounds.append(msgspec.json.decode(line, type=RoundLog))
        except msgspec.DecodeError:  # a crash cut the last line short; its round will be run again
            break
    return rounds


class _Prepared(NamedTuple):
    task: Any
    model: torch.nn.Module
    streams: RandomStreams


def _prepare(recipe: Recipe) -> _Prepared:
    seeded = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, seeded)
    streams = SystemStreams() if recipe.mode == "deployed" else seeded
    return _Prepared(task, trainable_copy(task.model, recipe.device), streams)


def _proceed(folder: Path, recipe: Recipe, prepared: _Prepared, watch: Watch) -> Outcome:
    task, model, streams = prepared
    layout = Layout.of(model)
    exhausted = None
    with SqliteLedger(folder / "ledger.sqlite", recipe.plan, recipe.budget) as ledger:
        server = Server(
            recipe.plan, recipe.denoiser, layout, ledger, recipe.server_rate, recipe.averaging
        )
        simulation = federate(
            model, task.data, server, recipe.local, streams, block_size=recipe.block_size
        )
        state = last = _last_state(folder, server, model)
        rounds = _trimmed(folder, state.round)
        _say_what_was_lost(ledger, state, recipe.mode)
        clock = time.perf_counter()
        try:
            with (folder / "rounds.jsonl").open("ab") as lines:
                for state in simulation.run(last):
                    score: tuple[float | None, float | None] = (None, None)
                    if (
                        state.round % recipe.evaluate_every == 0
                        or state.round == recipe.plan.rounds
                    ):
                        layout.write(state.average, model)
                        score = evaluate(model, task.test, cross_entropy)
                    now = time.perf_counter()
                    rounds.append(RoundLog(state.round, ledger.epsilon(), *score, now - clock))
                    clock = now
                    lines.write(msgspec.json.encode(rounds[-1]) + b"\n")
                    lines.flush()
                    _checkpoint(state, ledger.head).save(folder)
                    watch(rounds[-1])
        except BudgetExhausted as error:
            exhausted = error
        paid, head = len(ledger.entries), ledger.head
    layout.write(state.average, model)
    tensors = {n: t.detach().cpu().contiguous() for n, t in model.named_parameters()}
    write_whole(folder / "model.safetensors", save_model(tensors, {"mode": recipe.mode}))
    facts = statement(recipe.plan, mode=recipe.mode, rounds_paid=paid, ledger_head=head)
    facts["files"] = {name: file_digest(folder / name) for name in _sealed(folder)}
    write_whole(folder / "privacy.json", json.dumps(facts, indent=2).encode())
    write_report(folder, recipe, rounds, facts)
    return Outcome(summary(folder, recipe, rounds, facts), exhausted)


def _sealed(folder: Path) -> list[str]:
    """Files whose digests the statement records."""
    return [
        name
        for name in ("ledger.sqlite", str(FILE), "model.safetensors")
        if (folder / name).is_file()
    ]


def summary(
    folder: Path, recipe: Recipe, rounds: list[RoundLog], facts: dict[str, Any]
) -> dict[str, Any]:
    """What ``dpfedls run`` and ``resume`` answer."""
    judged = [log for log in rounds if log.loss is not None]
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
        "seconds_per_round": sum(log.seconds for log in rounds) / max(len(rounds), 1),
        "private": recipe.plan.is_private,
        "mode": recipe.mode,
        "seed": recipe.seed,
    }


def _last_state(folder: Path, server: Server, model: torch.nn.Module) -> ServerState:
    if not (folder / FILE).is_file():
        return server.start(server.layout.read(model))
    found = Checkpoint.load(folder)
    device = next(model.parameters()).device
    params, average = (torch.from_numpy(a.copy()).to(device) for a in (found.params, found.average))
    return ServerState(found.round, params, average)


def _say_what_was_lost(ledger: SqliteLedger, state: ServerState, mode: str) -> None:
    """A crash between paying and checkpointing loses a release; nobody should have to guess."""
    lost = sorted({e.round + 1 for e in ledger.entries if e.round >= state.round})
    if lost:
        again = "with the same noise, at no new cost" if mode == "simulation" else "and paid again"
        log.warning(
            "rounds %s were paid for and then lost in a crash; they are run again %s",
            ", ".join(map(str, lost)),
            again,
        )


def _checkpoint(state: ServerState, ledger_head: str) -> Checkpoint:
    params, average = state.params.cpu().numpy(), state.average.cpu().numpy()
    return Checkpoint(state.round, params, average, ledger_head)


def _trimmed(folder: Path, last: int) -> list[RoundLog]:
    """The log up to a round; what a crash left behind it is dropped, since it will be run again."""
    rounds = [log for log in read_rounds(folder) if log.round <= last]
    lines = b"".join(msgspec.json.encode(log) + b"\n" for log in rounds)
    write_whole(folder / "rounds.jsonl", lines)
    return rounds
