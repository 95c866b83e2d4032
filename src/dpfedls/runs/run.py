"""One run, one folder: train, pay, log, checkpoint; stop at any moment and go on from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from torch import nn

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.metrics import evaluate
from dpfedls.audit.diagnostics import Diagnostics
from dpfedls.runs.folder import (
    Outcome,
    RunFolder,
    Watch,
    is_free,
    read_recipe,
    server_for,
)
from dpfedls.runs.recipe import Recipe
from dpfedls.local_sgd import cross_entropy
from dpfedls.parameters import Layout
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.server import ServerState
from dpfedls.simulation import Simulation, federate, trainable_copy
from dpfedls.tasks.task import Task, make_task
from dpfedls.engine.ranks import ALONE, Workers


def start(
    recipe: Recipe, folder: Path, watch: Watch = lambda _: None, workers: Workers = ALONE
) -> Outcome:
    """Run a recipe in an empty or absent folder."""
    if not is_free(folder):
        raise InputError(
            f"{folder} already holds files, perhaps another run's; nothing was touched: choose "
            f"another --out, or go on with it by: dpfedls resume {folder}"
        )
    return _run(recipe.resolved(), folder, watch, workers)


def resume(folder: Path, watch: Watch = lambda _: None, workers: Workers = ALONE) -> Outcome:
    """Go on with the run of a folder after the last round in its checkpoint."""
    return _run(read_recipe(folder), folder, watch, workers)


def assist(workers: Workers) -> None:
    """What all ranks but the first do: train their part of each cohort in the run that it leads."""
    recipe, folder = workers.tell()
    recipe = msgspec.structs.replace(recipe, budget=None)  # rank 0 pays, and says when to stop
    seeded = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, seeded)
    simulation, model = _prepare(recipe, task, seeded)
    workers.begin(folder)
    round_, *tensors = workers.tell()
    device = next(model.parameters()).device
    state = ServerState(round_, *(tensor.to(device) for tensor in tensors))
    engine = replace(simulation.engine, ranks=workers)
    for _ in replace(simulation, engine=engine).run(state):
        pass


def _run(recipe: Recipe, folder: Path, watch: Watch, workers: Workers) -> Outcome:
    if workers.size > 1 and recipe.mode == "deployed":
        raise InputError(
            'mode = "deployed" draws noise that nobody can draw again, but ranks stay alike by '
            "drawing the same: run it in one process, without torchrun"
        )
    workers.tell((recipe, folder))
    # Whatever is wrong with the input is found before a file is made.
    seeded = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, seeded)
    simulation, model = _prepare(recipe, task, seeded)
    diagnostics = Diagnostics(folder, task, seeded) if recipe.diagnose else None
    workers.begin(folder)
    run = RunFolder(folder, recipe, simulation.server, model)
    engine = replace(simulation.engine, ranks=workers)
    simulation = replace(simulation, server=run.server, engine=engine)
    exhausted = None
    try:
        if diagnostics is not None:
            diagnostics.trim(run.state.round)
        workers.tell((run.state.round, run.state.params.cpu(), run.state.average.cpu()))
        for state in simulation.run(run.state):
            score: tuple[float | None, float | None] = (None, None)
            if state.round % recipe.evaluate_every == 0 or state.round == recipe.plan.rounds:
                run.server.layout.write(state.average, model)
                score = evaluate(model, task.test, cross_entropy)
                if diagnostics is not None:
                    diagnostics.record(state.round, model)
            watch(run.record(state, *score))
    except BudgetExhausted as error:
        exhausted = error
    except BaseException:
        run.close()
        raise
    return Outcome(run.seal(), exhausted)


def _prepare(recipe: Recipe, task: Task, seeded: SeededStreams) -> tuple[Simulation, nn.Module]:
    streams = SystemStreams() if recipe.mode == "deployed" else seeded
    model = trainable_copy(task.model, recipe.device)
    server = server_for(recipe, Layout.of(model))
    simulation = federate(
        model, task.data, server, recipe.local, streams, block_size=recipe.block_size
    )
    return simulation, model
