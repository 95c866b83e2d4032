"""Everything that leaves a run, made again from public values alone and compared.

From the recipe, the first model, the releases and the test set follow all models, the log, the
statement and the report. What differs from that was made from something else.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import torch

from dpfedls.audit.worlds import World
from dpfedls.denoising import denoise, first_memory
from dpfedls.metrics import evaluate
from dpfedls.parameters import Layout
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.curve import epsilon_by_round
from dpfedls.runs import recipe as recipes
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.folder import read_rounds
from dpfedls.runs.model_file import trained_vector
from dpfedls.runs.report import write_report
from dpfedls.runs.verify import verify
from dpfedls.server import ServerState

FILES = {
    "recipe.toml", "rounds.jsonl", "notes.json", "privacy.json", "ledger.sqlite", "report.html",
    "model.safetensors", str(FILE),
}  # fmt: skip
"""All that a run folder may hold. Whoever adds to it says here what it is made from."""
LINE = {"round", "epsilon", "clip_norm", "accuracy", "loss", "metrics"}
TABLES = {"entries", "sqlite_sequence"}


def replayed(world: World) -> list[ServerState]:
    """The states after each round, from the recipe, the first model and the releases."""
    recipe, layout = world.recipe, Layout.of(world.task.model)
    params = layout.read(world.task.model)
    norm = recipe.plan.clipping.start
    memory = first_memory(world.denoiser, layout)
    states = [ServerState(0, params, params, norm, memory)]
    weighted, weights = params.double(), 1.0
    for seen in world.record:
        release = seen.releases[0]
        direction, memory = denoise(world.denoiser, release, memory)
        params = params + recipe.server_rate * direction
        if recipe.averaging == 0:
            average = params
        else:  # Σ r^−s w^s ÷ Σ r^−s, each term times r at every step so that none overflows
            weighted = recipe.averaging * weighted + params.double()
            weights = recipe.averaging * weights + 1
            average = (weighted / weights).float()
        norm = _next_norm(recipe, norm, release.inside, seen.number)
        states.append(ServerState(seen.number + 1, params, average, norm, memory))
    return states


def leaving_problems(world: World) -> list[str]:
    """What left the run and does not follow from public values."""
    if any(len(seen.releases) != 1 for seen in world.record):
        return ["rounds and releases do not match"]
    states = replayed(world)
    return [
        *_names(world.folder),
        *_training(world, states),
        *_models(world, states),
        *_log(world, states),
        *_documents(world),
    ]


def neighbour_problems(one: World, other: World) -> list[str]:
    """What differs between two worlds and should not; releases and what follows from them may."""
    problems = []
    if one.said != other.said:
        problems.append("what is logged or printed tells who was there")
    if one.result.engine != other.result.engine:
        problems.append("the engine chosen tells who was there")
    if (one.folder / "recipe.toml").read_bytes() != (other.folder / "recipe.toml").read_bytes():
        problems.append("recipe.toml tells who was there")
    if _notes(one.folder) | {"started": ""} != _notes(other.folder) | {"started": ""}:
        problems.append("notes.json tells who was there")  # but for the day, if midnight passed
    stated, stated_too = (_without_digests(world.folder) for world in (one, other))
    if stated != stated_too:
        problems.append("privacy.json tells who was there")
    paid, paid_too = (_payments(world.folder) for world in (one, other))
    if paid != paid_too:
        problems.append("the ledger tells who was there")
    return problems


def _names(folder: Path) -> list[str]:
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return [f"{name} should not be in the run folder" for name in sorted(found - FILES)] + [
        f"{name} is missing from the run folder" for name in sorted(FILES - found)
    ]


def _training(world: World, states: list[ServerState]) -> list[str]:
    """Clients start from the public model, in a ball of the public radius."""
    ahead = getattr(world.denoiser, "ahead", None)
    for seen, state in zip(world.record, states, strict=False):
        start = state.params if ahead is None else ahead(state.params, state.memory)
        if seen.start is None or not torch.equal(seen.start, start):
            return ["clients did not start from the public model"]
        if not math.isclose(seen.bounds[0].norm, state.clip_norm, rel_tol=1e-9):
            return ["the clip norm of a round does not follow from the releases before it"]
    return []


def _models(world: World, states: list[ServerState]) -> list[str]:
    problems, last = [], states[-1]
    if not (world.folder / FILE).is_file():
        return ["there is no checkpoint"]
    kept = Checkpoint.load(world.folder)
    memory = {name: torch.from_numpy(values.copy()) for name, values in kept.memory.items()}
    if (
        kept.round != last.round
        or not torch.equal(torch.from_numpy(kept.params.copy()), last.params)
        or not _near(torch.from_numpy(kept.average.copy()), last.average)
        or not math.isclose(kept.clip_norm, last.clip_norm, rel_tol=1e-9)
        or memory.keys() != last.memory.keys()
        or any(not torch.equal(memory[name], tensor) for name, tensor in last.memory.items())
    ):
        problems.append("the checkpoint does not follow from the releases")
    path = world.folder / "model.safetensors"
    own = Layout.of(world.result.model).read(world.result.model)
    if not path.is_file() or trained_vector(path).tobytes() != kept.average.tobytes():
        problems.append("the model that is handed out is not that of the checkpoint")
    if not _near(own, last.average):
        problems.append("the model that is handed out does not follow from the releases")
    return problems


def _log(world: World, states: list[ServerState]) -> list[str]:
    problems, recipe, test = [], world.recipe, world.task.test
    lines = [json.loads(line) for line in _lines(world.folder / "rounds.jsonl")]
    allowed = LINE | ({"seconds"} if recipe.mode == "simulation" else set())
    extra = sorted({key for line in lines for key in line} - allowed)
    problems += [f"{key!r} should not be in rounds.jsonl" for key in extra]
    if [line.get("round") for line in lines] != [state.round for state in states[1:]]:
        return [*problems, "the rounds in rounds.jsonl are not those that were released"]
    if msgspec.to_builtins(world.result.history) != msgspec.to_builtins(read_rounds(world.folder)):
        problems.append("what Python is told is not what rounds.jsonl holds")
    model = copy.deepcopy(world.task.model)
    curve = epsilon_by_round(recipe.plan)
    for line, before, state in zip(lines, states, states[1:], strict=False):
        cost = curve[state.round]
        cost = cost if recipe.budget is None else min(cost, recipe.budget)
        if not math.isclose(line["epsilon"], cost, rel_tol=1e-9):
            problems.append("an ε in rounds.jsonl is not that of the rounds so far")
        if not math.isclose(line["clip_norm"], before.clip_norm, rel_tol=1e-9):
            problems.append("a clip norm in rounds.jsonl does not follow from the releases")
        due = state.round % recipe.evaluate_every == 0 or state.round == recipe.plan.rounds
        expected: dict[str, float] = {}
        if test is not None and due:
            Layout.of(model).write(state.average, model)
            expected = evaluate(model, test, world.task.loss, world.task.metrics)
        told = line.get("metrics", {})
        told = told | {key: line[key] for key in ("accuracy", "loss") if key in line}
        if told.keys() != expected.keys() or not all(
            math.isclose(told[key], value, rel_tol=1e-4, abs_tol=1e-4)
            for key, value in expected.items()
            if math.isfinite(value)
        ):
            problems.append("metrics in rounds.jsonl are not those of the model on the test set")
    return list(dict.fromkeys(problems))


def _documents(world: World) -> list[str]:
    folder, recipe = world.folder, world.recipe
    problems = [f"verify: {text}" for text in verify(folder)["problems"]]
    if (folder / "recipe.toml").read_bytes() != recipes.encode(recipe).encode():
        problems.append("recipe.toml is not the recipe that ran")
    if _notes(folder).keys() != {"engine", "model", "own_code", "started", "made_by"}:
        problems.append("notes.json holds more, or less, than engine, model, own code and origin")
    with tempfile.TemporaryDirectory(prefix="dpfedls-") as place:
        twin = Path(shutil.copytree(folder, Path(place) / folder.name))
        (twin / "report.html").unlink()
        write_report(twin, recipe, read_rounds(folder), world.result.statement)
        if (twin / "report.html").read_bytes() != (folder / "report.html").read_bytes():
            problems.append("report.html does not follow from the log and the statement")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if {name for (name,) in tables} != TABLES:
            problems.append("the ledger holds tables other than its entries")
    summary = world.result.summary()
    known = world.result.statement | {"metrics": world.result.metrics}
    if summary["epsilon"] != known["epsilon"] or summary["metrics"] != known["metrics"]:
        problems.append("the answer of the run is not what its statement and log say")
    return problems


def _next_norm(recipe: Any, norm: float, inside: float | None, t: int) -> float:
    """Adaptive clipping as its docstring says it: C · exp(−η_t (b − quantile))."""
    clipping = recipe.plan.clip_norm
    if not isinstance(clipping, AdaptiveClipping) or inside is None:
        return norm
    share = min(max(inside, 0.0), 1.0)
    moved = norm * math.exp(-(0.2 + 4 * 0.7**t) * (share - clipping.quantile))
    return min(max(moved, 1e-12), 1e12)


def _notes(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "notes.json").read_bytes())


def _without_digests(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "privacy.json").read_bytes())
    digests = values.pop("files")
    return values | {"ledger_head": None, "files": sorted(digests)}


def _payments(folder: Path) -> Any:
    account = read_ledger(folder / "ledger.sqlite")
    return {**account.opening, "run": None}, msgspec.to_builtins(account.entries)


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for the rounding of an average that is streamed."""
    room = 1e-5 * float(other.abs().max()) + 1e-12
    return one.shape == other.shape and float((one - other).abs().max()) <= room


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.is_file() else []
