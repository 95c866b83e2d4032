"""Runs on one machine: recipes by ``start`` and ``resume``, objects by ``dpfedls.train``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from dpfedls.clipping import Bound
from dpfedls.denoising import AnyCallable
from dpfedls.engine import Engine, choose
from dpfedls.engine.ranks import ALONE, Workers
from dpfedls.errors import InputError
from dpfedls.metrics import evaluate
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.lazy import LazyClients, someone
from dpfedls.people.samples import each
from dpfedls.people.units import AsGiven, folded
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.runs.fitting import ready, rescaling_of, survey_of, units_of
from dpfedls.runs.folder import is_free, read_recipe, require_own
from dpfedls.runs.recipe import PYTHON, Recipe, built
from dpfedls.runs.record import Result, Watch
from dpfedls.runs.run import open_run, server_for
from dpfedls.server import Server, ServerState
from dpfedls.simulation import Simulation
from dpfedls.tasks.task import Task, make_task


def start(
    recipe: Recipe, folder: Path, watch: Sequence[Watch] = (), ranks: Workers = ALONE
) -> Result:
    """Run a recipe in an empty or absent folder."""
    if not is_free(folder):
        raise InputError(
            f"{folder} already holds files, perhaps another run's; nothing was touched: choose "
            f"another --out, or go on with it by: dpfedls resume {folder}"
        )
    return _run(recipe.resolved(), folder, watch, ranks)


def resume(
    folder: Path,
    watch: Sequence[Watch] = (),
    ranks: Workers = ALONE,
    *,
    trust: bool = False,
    settings: list[str] | None = None,
) -> Result:
    """Go on with the run of a folder after the last round in its checkpoint.

    ``settings`` may change how it is run, its device, say; others are refused.
    """
    recipe = read_recipe(folder, settings)
    require_own(folder, recipe)
    return _run(trusted(recipe, folder, trust), folder, watch, ranks)


def trusted(recipe: Recipe, folder: Path, trust: bool) -> Recipe:
    """The recipe of a run folder, if what it would run is ours or the person says it is theirs."""
    if recipe.task == PYTHON:
        raise InputError(
            f"{folder} was started by dpfedls.train with a model and data that are not in it: no "
            "command can run it; to go on with it, call train again with the same arguments"
        )
    if recipe.own_code and not trust:
        raise InputError(
            f"{folder} names code that is not part of dpfedls ({recipe.own_code[0]}), and a folder "
            "may come from anybody; if it is yours, say so with --trust"
        )
    return recipe


def simulate(
    recipe: Recipe,
    task: Task,
    denoiser: AnyCallable,
    folder: Path | None,
    watch: Sequence[Watch] = (),
    ranks: Workers = ALONE,
    observe: Callable[[Simulation], Simulation] = lambda simulation: simulation,
) -> Result:
    """Train a task under a recipe; whatever is wrong is found before a file is made.

    ``observe`` is for audits: it may put instruments between the parts of the simulation.
    """
    recipe = ready(recipe, task)
    simulation, model = prepare(recipe, task, denoiser)
    simulation = observe(simulation)
    engine = simulation.engine
    ranks.begin(folder or Path())
    why = f"{engine.name}: {engine.reason}"
    run = open_run(recipe, task, model, simulation.server, why, folder, watch)
    ranks.tell(run.state.to("cpu"))
    engine = replace(engine, ranks=ranks)
    return run.through(replace(simulation, server=run.server, engine=engine).run_round)


def assist(ranks: Workers) -> None:
    """What all ranks but the first do: train their part of each cohort in the run that it leads."""
    recipe, folder = ranks.tell()
    recipe = msgspec.structs.replace(recipe, budget=None)  # rank 0 pays, and says when to stop
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    simulation, model = prepare(recipe, task, built(recipe.denoiser))
    ranks.begin(folder)
    state: ServerState = ranks.tell().to(next(model.parameters()).device)
    simulation = replace(simulation, engine=replace(simulation.engine, ranks=ranks))
    while state.round < recipe.plan.rounds:
        state = simulation.run_round(state)


def prepare(recipe: Recipe, task: Task, denoiser: AnyCallable) -> tuple[Simulation, nn.Module]:
    """The simulation of a task under a recipe, and the copy of the model that it trains."""
    recipe = ready(recipe, task)
    streams = SystemStreams() if recipe.mode == "deployed" else SeededStreams(recipe.seed)
    check_model(task.model)
    units = units_of(recipe, task)
    model = folded(task.model, units).to(find_device(recipe.device))
    check_samples(model, task.data, "clients", task.loss)
    if task.test is not None:
        check_samples(model, task.test, "test", task.loss)
        few = each(lambda part: part[:2], task.test)
        evaluate(model, few, task.loss, task.metrics)  # a metric that fails, fails now
    if recipe.mode == "deployed" and isinstance(task.data, LazyClients) and task.data.like is None:
        raise InputError(
            "a deployed run may look at nobody to learn the shape of a sample; give test=…, or "
            "LazyClients(…, like=(features, targets)) with a made-up pair of that shape and dtype"
        )
    survey = survey_of(recipe, task)
    people = task.data.to(next(model.parameters()).device)

    trained = copy.deepcopy(model)  # what a model keeps of people's samples is not handed out

    def engine_in(units: AsGiven) -> Engine:
        return choose(
            trained,
            people.in_units(units),
            recipe.local,
            task.loss,
            engine=recipe.engine,
            block_size=recipe.block_size,
        )

    engine = replace(engine_in(units), made_in=None if survey is None else _latest(engine_in))
    server = server_for(recipe, model, denoiser, units)
    server = replace(server, survey=survey, rescaling=rescaling_of(recipe, task))
    _try_question(engine, server, model)
    if recipe.mode == "deployed":
        # Once it runs, an error that names people would tell who was drawn. That model and loss
        # train at all is seen before, or every round would be paid for and nothing learned.
        one, bound = np.array([someone(task.data)]), Bound(recipe.plan.clipping.start)
        first = server.broadcast(server.start(server.layout.read(model)))
        engine.clipped_total(first, one, 0, 0, bound)
        engine = replace(engine, failing="zero")
    return Simulation(engine, server, streams), model


def _try_question(engine: Engine, server: Server, model: nn.Module) -> None:
    """Refuse a model or loss that cannot answer the last question, before a round is paid for."""
    if server.rescaling is None:
        return
    one, norm = np.array([someone(engine.data)]), server.plan.clipping.start
    params, last = server.layout.read(model), Bound(norm, question=server.rescaling.question)
    try:
        engine.answers(params, one, last)
    except Exception as error:  # of a person's own loss
        raise InputError(
            "rescale asks how a client's loss changes with the scores, and this model and loss "
            f"cannot say ({type(error).__name__}); leave rescale out, or give rescale=False"
        ) from error


def _latest(make: Callable[[AsGiven], Engine]) -> Callable[[AsGiven], Engine]:
    """The function with its last result at hand: units are found once, and every round asks."""
    last: list[tuple[AsGiven, Engine]] = []

    def made(units: AsGiven) -> Engine:
        if not last or not units.same(last[0][0]):
            last[:] = [(units, make(units))]
        return last[0][1]

    return made


def find_device(name: str) -> torch.device:
    """The torch device of that name, if it is there."""
    try:
        if name == "meta":
            raise RuntimeError("holds no numbers")
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        there = ["cpu"] + ["cuda"] * torch.cuda.is_available()
        raise InputError(
            f"device {name!r} is not there; choose one of: {', '.join(there)}"
        ) from error


def _run(recipe: Recipe, folder: Path, watch: Sequence[Watch], ranks: Workers) -> Result:
    if ranks.size > 1 and recipe.mode == "deployed":
        raise InputError(
            'mode = "deployed" draws noise that nobody can draw again, but ranks stay alike by '
            "drawing the same: run it in one process, without torchrun"
        )
    if recipe.nodes is not None:
        raise InputError(
            f"{folder} is for a run on nodes ([nodes] in its recipe), which hold the data; go on "
            "with flwr run or dpfedls deploy local, or take [nodes] out to simulate it anew"
        )
    ranks.tell((recipe, folder))
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    return simulate(recipe, task, built(recipe.denoiser), folder, watch, ranks)
