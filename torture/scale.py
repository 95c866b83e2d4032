"""How large it may become: people, parameters, nodes; memory and speed are stated and bounded."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import nn

import dpfedls
from dpfedls.flower.replies import make_reply
from dpfedls.flower.strategy import DPFedLS
from dpfedls.parameters import Layout
from dpfedls.runs.recipe import Recipe
from torture import places
from torture.outcome import Outcome
from torture.process import forked
from torture.watched import watch_noise
from torture.wire import WiredGrid

_GIGABYTE = 2**30
_MEMORY = 24 * _GIGABYTE
_RESUMED = 5.0  # seconds of work, for a million parameters
SAMPLES, FEATURES = 10, 100
_LOCAL = dpfedls.LocalSGD(epochs=1, batch_size=10, learning_rate=0.1)

Look = Callable[[int, int, Path], dict[str, Any]]
"""``look(cases, seed, folder)`` gives a note, with a place for the memory, and problems."""


def scale(cases: int, seed: int) -> Outcome:
    """So many people; a hundred times as many parameters; for every thousand of them a node."""
    found, notes = Outcome(), []
    disk = places.own(Path("/var/tmp"))  # files of gigabytes: not in memory
    looks: tuple[Look, ...] = (_people, _parameters, _nodes, _resumed)
    try:
        for look in looks:
            told = disk / "told"
            answer = forked(lambda look=look, told=told: _tell(look, cases, seed, told), limit=900)
            if answer.code:
                found.add(look.__name__, [f"it failed: {answer.err[-300:]}"])
                continue
            figures = json.loads(told.read_bytes())
            found.add(look.__name__, figures["problems"])
            notes.append(figures["note"])
    finally:
        places.remove(disk)
    found.note = "; ".join(notes)
    return found


def _tell(
    look: Callable[[int, int, Path], dict[str, Any]], cases: int, seed: int, to: Path
) -> None:
    watch_noise(to.with_name("noise"))
    torch.manual_seed(seed)
    figures = {"problems": []} | look(cases, seed, to.with_name(look.__name__))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures["note"] = figures["note"].format(memory=f"{peak / _GIGABYTE:.1f} GB")
    if peak > _MEMORY:
        figures["problems"].append(f"it took {peak / _GIGABYTE:.1f} GB")
    to.write_text(json.dumps(figures))


def _people(cases: int, seed: int, folder: Path) -> dict[str, Any]:
    data = dpfedls.ClientData.from_pairs(_pairs(cases))
    plan = _plan(cases, min(1.0, 1000 / cases), rounds=3)
    result = _train(nn.Linear(FEATURES, 10), data, plan)
    problems = [] if len(result.history) == 3 else ["not all rounds were run"]
    note = f"{cases:,} people of {SAMPLES} samples, {FEATURES} numbers each: {{memory}}"
    return {"note": note, "problems": problems}


def _pairs(people: int, features: int = FEATURES) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    block = 1_000  # people who are drawn at once
    for begun in range(0, people, block):
        rows = SAMPLES * min(block, people - begun)
        x, y = torch.randn(rows, features), torch.randint(10, (rows,))
        yield from zip(x.split(SAMPLES), y.split(SAMPLES), strict=True)


def _parameters(cases: int, seed: int, folder: Path) -> dict[str, Any]:
    """A layer of so many weights, kept in a folder: checkpoint, model and all."""
    width = max(10, int((100 * cases) ** 0.5))
    model = nn.Linear(width, width, bias=False)
    begun = time.process_time()
    _train(model, _few(width, width), _plan(8, 0.5, rounds=1), folder=folder)
    seconds = time.process_time() - begun
    return {"note": f"a round of {width**2:,} parameters: {{memory}}, {seconds:.0f} s of CPU"}


def _resumed(cases: int, seed: int, folder: Path) -> dict[str, Any]:
    """Stopped after two of three rounds: the same call goes on to the end."""
    width = max(10, int(cases**0.5))
    model, data, plan = nn.Linear(width, width, bias=False), _few(width, width), _plan(8, 0.5, 3)

    def stop(line: Any) -> None:
        if line.round == 2:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        _train(model, data, plan, folder=folder, watch=[stop])
    begun = time.process_time()
    result = _train(model, data, plan, folder=folder)
    seconds = time.process_time() - begun
    problems = [f"resuming took {seconds:.1f} s"] if seconds > _RESUMED else []
    problems += [] if len(result.history) == 3 else ["not all rounds are in the log"]
    note = f"resume, a round and the seal of {width**2:,} parameters: {seconds:.1f} s of CPU"
    return {"note": note, "problems": problems}


def _few(features: int, classes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(2, features), torch.randint(classes, (2,))) for _ in range(8)]


def _nodes(cases: int, seed: int, folder: Path) -> dict[str, Any]:
    """A server of ours and so many nodes whose replies cross Flower's wire format."""
    nodes, people = max(2, cases // 1_000), 10
    model = nn.Linear(FEATURES, 100)
    layout = Layout.of(model)
    update = torch.full((layout.dim,), 1e-3, dtype=torch.float64)
    answered = 0

    def answering(question: Message) -> RecordDict:
        nonlocal answered
        answered += 1
        return make_reply(update, layout, int(question.metadata.group_id) - 1)

    grid = WiredGrid(range(nodes), answering)
    plan = _plan(nodes * people, 0.3, rounds=3)
    recipe = Recipe(task="python", plan=plan, local=_LOCAL, mode="deployed")
    held = {node: range(people * node, people * (node + 1)) for node in range(nodes)}
    strategy = DPFedLS(recipe, model=model, folder=folder, people=held)
    begun = time.process_time()
    strategy.start(grid, timeout=600)
    seconds = time.process_time() - begun - grid.asking
    problems = [] if strategy.run.state.round == 3 else ["not all rounds were released"]
    note = (
        f"{nodes:,} nodes, {answered} replies of {layout.dim:,} parameters in 3 rounds: "
        f"{answered / seconds:.0f} replies a second of the server's CPU, {{memory}}"
    )
    return {"note": note, "problems": problems}


def _plan(people: int, rate: float, rounds: int) -> dpfedls.PrivacyPlan:
    return dpfedls.PrivacyPlan(
        sampler=dpfedls.PoissonSampling(rate=rate),
        num_clients=people,
        rounds=rounds,
        clip_norm=0.5,
        noise_multiplier=1.0,
        delta=people**-1.1,
    )


def _train(model: nn.Module, clients: Any, plan: dpfedls.PrivacyPlan, **more: Any) -> Any:
    return dpfedls.train(
        model=model,
        clients=clients,
        plan=plan,
        local=_LOCAL,
        denoiser=dpfedls.LaplacianSmoothing(strength=1.0),
        **more,
    )
