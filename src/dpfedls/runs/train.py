"""``dpfedls.train``: your model, your people's data, your promise; and the model back."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from dpfedls.auto.choices import LOCAL, SCHEDULE, SMOOTHING, WHY, plan_for
from dpfedls.denoisers import AnyDenoiser
from dpfedls.denoisers.chain import Chain
from dpfedls.denoising import AnyCallable, Identity
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD
from dpfedls.metrics import Metrics
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.rescale import Rescale
from dpfedls.people.survey import Measured
from dpfedls.privacy.accountants import usual_delta
from dpfedls.privacy.accounting.search import WINDOW
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.fitting import ready
from dpfedls.runs.folder import path_of, read_recipe
from dpfedls.runs.recipe import PYTHON, NamedDenoiser, OwnDenoiser, Recipe
from dpfedls.runs.record import Result, Watch
from dpfedls.runs.seal import is_finished
from dpfedls.runs.simulate import simulate
from dpfedls.runs.watch import Progress
from dpfedls.stepping import Schedule, ServerRate
from dpfedls.tasks import own
from dpfedls.tasks.task import Task

log = logging.getLogger("dpfedls")


def train(
    model: nn.Module,
    clients: Any,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    plan: PrivacyPlan | None = None,
    local: LocalSGD | None = None,
    denoiser: AnyCallable | None = None,
    server_rate: ServerRate | Literal["auto"] | None = None,
    schedule: Schedule | None = None,
    averaging: float = 0.0,
    standardise: bool | Literal["always"] | Measured | None = None,
    rescale: bool | Rescale | None = None,
    loss: Loss = cross_entropy,
    metrics: Metrics | None = None,
    test: Any = None,
    test_from: str = "",
    folder: str | os.PathLike[str] | None = None,
    population: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    mode: Literal["simulation", "deployed"] = "simulation",
    engine: Literal["auto", "looped", "vmapped", "compiled"] = "auto",
    watch: Sequence[Watch] = (),
    progress: bool = False,
    seed: int = 0,
    device: str | torch.device = "cpu",
    block_size: int | None = None,
    evaluate_every: int = 1,
) -> Result:
    """Train a copy of ``model`` on people's data under a promise: ``epsilon`` alone, or a ``plan``.

    Args:
        model: Any module without running statistics; it is copied, not changed.
        clients: The people: one (features, targets) pair each, or a ``ClientData``.
        epsilon: What the run may cost each person; whatever else is not given is chosen from it.
        delta: N^−1.1 if not given. Only beside ``epsilon``; a plan has its own.
        plan: The whole promise instead of ``epsilon``. What else is not given is then the paper's:
            five epochs, no smoothing, server rate 1.
        local: How a client trains; takes the place of all that would be chosen for it.
        denoiser: What is done with each release: ``LaplacianSmoothing(…)``, ``Identity()``, or a
            callable of yours.
        server_rate: By how much the server follows a release: a number, or ``"auto"``.
        schedule: How the server rate falls: ``"constant"``, ``"root"`` or ``"linear"``.
        averaging: Share in [0, 1] by which older iterates count in the model; 0 is the last one.
        standardise: Whether people train on standardised columns: ``False``, ``True`` (by ``test``,
            if its columns are not around 1), ``"always"``, or ``Measured(…)``.
        rescale: ``Rescale(…)`` has the last rounds ask how sure the model may be; ``False``: none.
            Chosen from ``epsilon`` if not given.
        loss: ``loss(outputs, targets)`` gives one number per sample.
        metrics: Names and functions of (outputs, targets) that give one number for all.
        test: A (features, targets) pair to evaluate on, of people who are not trained on.
        test_from: Whose samples these are; the statement prints it.
        folder: Keeps ledger, checkpoint, log, statement and report; the same call after a crash or
            Ctrl-C goes on where it stopped.
        population: A ledger on disk that several runs on the same people share.
        budget: The run stops before its ε exceeds this.
        mode: ``"deployed"`` draws noise from the operating system and needs a folder; the default
            simulates, and protects nobody.
        engine: Which code trains clients; ``"auto"`` is the fastest that can.
        watch: Functions that are called with the record of each round.
        progress: Whether a progress bar is shown.
        seed: Of everything random in a simulation.
        device: Where tensors live: ``"cpu"``, ``"cuda"``.
        block_size: How many clients train at once; bounds memory.
        evaluate_every: Rounds between evaluations on ``test``.

    """
    given = dict(locals())
    for name in ("folder", "population", "watch", "progress"):
        del given[name]
    if mode == "deployed" and folder is None:
        raise InputError(
            'mode = "deployed" pays for every round on disk before its noise is drawn, so that no '
            'crash forgets what was spent; give folder="runs/mine"'
        )
    if population is not None and folder is None:
        raise InputError(
            f'population = "{population}" shares one budget on disk among runs, and this one has '
            'no ledger there; give folder="runs/mine"'
        )
    if isinstance(watch, str) or not isinstance(watch, Sequence) or not all(map(callable, watch)):
        raise InputError(
            f"watch is {watch!r}, not a list of functions of a record; several may watch: give "
            "watch=[…]"
        )
    place = None if folder is None else path_of(folder, "folder")
    account = population
    if account is not None:
        account = str(path_of(account, "population", "people.sqlite").resolve())
    recipe, task, denoiser = recipe_for(**given, folder=place, population=account)
    watchers = [*watch, *([Progress()] if progress else [])]
    if place is not None and is_finished(place):
        log.warning("%s holds a finished run: its result is read, nothing is trained", place)
    try:
        result = simulate(recipe, task, denoiser, place, watchers)
    except KeyboardInterrupt:
        if place is not None:
            log.warning("stopped; finished rounds are kept in %s: the same call goes on", place)
        raise
    if result.exhausted is not None:
        log.warning("%s", result.exhausted)
    return result


def recipe_for(
    *,
    model: nn.Module,
    clients: Any,
    folder: Path | None = None,
    plan: PrivacyPlan | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    local: LocalSGD | None = None,
    denoiser: AnyCallable | None = None,
    server_rate: ServerRate | Literal["auto"] | None = None,
    schedule: Schedule | None = None,
    standardise: bool | Literal["always"] | Measured | None = None,
    rescale: bool | Rescale | None = None,
    loss: Loss = cross_entropy,
    metrics: Metrics | None = None,
    test: Any = None,
    test_from: str = "",
    device: str | torch.device = "cpu",
    **settings: Any,
) -> tuple[Recipe, Task, AnyCallable]:
    """What ``train`` is asked for as recipe, task and denoiser; ``settings`` are the recipe's.

    Where ε alone is given and ``folder`` holds a run for it, what was chosen then is chosen now:
    another version of this package, or of SciPy, might choose otherwise.
    """
    task = Task(
        clients, model, test, loss=loss, metrics={} if metrics is None else metrics,
        test_from=test_from,
    )  # fmt: skip
    if server_rate == "auto" and epsilon is not None:
        server_rate = None  # the same thing; and what was chosen in a folder goes on
    if local is not None and not isinstance(local, LocalSGD):
        raise InputError(
            f"local is {own.name_of(local)}, not dpfedls.LocalSGD; clients take plain SGD steps, "
            "whose length the clip norm bounds: give LocalSGD(epochs=5, learning_rate=0.1), say"
        )
    plan, usual, why = _promise(plan, epsilon, delta, task.data.num_clients, folder)
    given = {"local": local, "denoiser": denoiser, "schedule": schedule, "server_rate": server_rate}
    given |= {"standardise": standardise, "rescale": rescale}
    denoiser = usual.denoiser if denoiser is None else denoiser
    recipe = Recipe(
        task=PYTHON,
        plan=plan,
        local=usual.local if local is None else local,
        denoiser=_named(denoiser),
        schedule=usual.schedule if schedule is None else schedule,
        server_rate=usual.server_rate if server_rate is None else server_rate,
        standardise=usual.standardise if standardise is None else standardise,
        rescale=usual.rescale if rescale is None else rescale,
        chosen={key: line for key, line in why.items() if given.get(key.partition(".")[0]) is None},
        device=str(device),
        **settings,
    )
    return ready(recipe, task), task, denoiser


class _Usual(NamedTuple):
    """What goes with a promise where nothing else is said."""

    local: LocalSGD
    denoiser: AnyCallable
    schedule: Schedule
    server_rate: ServerRate | Literal["auto"]
    standardise: bool | Literal["always"] | Measured = False
    rescale: bool | Rescale = False


_BY_PLAN = _Usual(LocalSGD(epochs=5, batch_size=10), Identity(), "constant", 1.0)
_BY_EPSILON = _Usual(LOCAL, SMOOTHING, SCHEDULE, "auto")


def _promise(
    plan: PrivacyPlan | None,
    epsilon: float | None,
    delta: float | None,
    num_clients: int,
    folder: Path | None,
) -> tuple[PrivacyPlan, _Usual, dict[str, str]]:
    """The plan, what goes with it where nothing else is said, and why."""
    if (plan is None) == (epsilon is None):
        raise InputError(
            "give either plan=PrivacyPlan(…), the whole promise, or epsilon=…, from which a plan "
            f"is made; got {'both' if plan else 'neither'}"
        )
    if plan is None:
        assert epsilon is not None
        begun = _begun(folder, epsilon, delta, num_clients)
        if begun is not None:
            keys = {key.partition(".")[0] for key in begun.chosen} & set(_Usual._fields)
            usual = _BY_EPSILON._replace(**{key: getattr(begun, key) for key in keys})
            return begun.plan, usual, begun.chosen
        plan, why = plan_for(num_clients, epsilon, delta)
        return plan, _BY_EPSILON, why | WHY
    if delta is not None:
        raise InputError("delta is part of the plan: give PrivacyPlan(delta=…) and leave it out")
    return plan, _BY_PLAN, {}


def _begun(
    folder: Path | None, epsilon: float, delta: float | None, num_clients: int
) -> Recipe | None:
    """The recipe of the run that a folder holds, if its plan was chosen for this promise."""
    if folder is None or not (folder / "recipe.toml").is_file():
        return None
    recipe = read_recipe(folder)
    plan, promised = recipe.plan, usual_delta(num_clients) if delta is None else delta
    same = plan.num_clients == num_clients and math.isclose(plan.target_delta, promised)
    if not same or "plan.rounds" not in recipe.chosen:
        return None
    return recipe if (1 - 2 * WINDOW) * epsilon < plan.epsilon() <= epsilon else None


def _named(denoiser: AnyCallable) -> NamedDenoiser | list[NamedDenoiser]:
    """How the recipe of the run folder calls a denoiser."""
    if isinstance(denoiser, Chain):
        steps = [_named(step) for step in denoiser.steps]
        return [step for part in steps for step in (part if isinstance(part, list) else [part])]
    return (
        denoiser if isinstance(denoiser, AnyDenoiser) else OwnDenoiser(name=own.name_of(denoiser))
    )
