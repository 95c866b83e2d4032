"""One run, one folder: train, pay, log, checkpoint; stop at any moment and go on from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.evaluation import evaluate
from dpfedls.experiments.folder import (
    Outcome,
    RunFolder,
    Watch,
    is_free,
    read_recipe,
    server_for,
)
from dpfedls.experiments.recipe import Recipe
from dpfedls.local_update import cross_entropy
from dpfedls.parameters import Layout
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.simulation import Samples, Simulation, federate, trainable_copy
from dpfedls.tasks.task import make_task


def start(recipe: Recipe, folder: Path, watch: Watch = lambda _: None) -> Outcome:
    """Run a recipe in an empty or absent folder."""
    if not is_free(folder):
        raise InputError(
            f"{folder} already holds files, perhaps another run's; nothing was touched: choose "
            f"another --out, or go on with it by: dpfedls resume {folder}"
        )
    return _run(recipe.resolved(), folder, watch)


def resume(folder: Path, watch: Watch = lambda _: None) -> Outcome:
    """Go on with the run of a folder after the last round in its checkpoint."""
    return _run(read_recipe(folder), folder, watch)


def _run(recipe: Recipe, folder: Path, watch: Watch) -> Outcome:
    # Whatever is wrong with the input is found before a file is made.
    simulation, model, test = _prepare(recipe)
    run = RunFolder(folder, recipe, simulation.server, model)
    simulation = replace(simulation, server=run.server)
    exhausted = None
    try:
        for state in simulation.run(run.state):
            score: tuple[float | None, float | None] = (None, None)
            if state.round % recipe.evaluate_every == 0 or state.round == recipe.plan.rounds:
                run.server.layout.write(state.average, model)
                score = evaluate(model, test, cross_entropy)
            watch(run.record(state, *score))
    except BudgetExhausted as error:
        exhausted = error
    except BaseException:
        run.close()
        raise
    return Outcome(run.seal(), exhausted)


def _prepare(recipe: Recipe) -> tuple[Simulation, nn.Module, Samples]:
    seeded = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, seeded)
    streams = SystemStreams() if recipe.mode == "deployed" else seeded
    model = trainable_copy(task.model, recipe.device)
    server = server_for(recipe, Layout.of(model))
    simulation = federate(
        model, task.data, server, recipe.local, streams, block_size=recipe.block_size
    )
    return simulation, model, task.test
