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
    plan: PrivacyPlan | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    local: LocalSGD | None = None,
    denoiser: AnyCallable | None = None,
    server_rate: ServerRate | Literal["auto"] | None = None,
    schedule: Schedule | None = None,
    averaging: float = 0.0,
    standardise: bool | Literal["always"] | Measured | None = None,
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
    """Train a copy of ``model`` on people's data under a promise: a ``plan``, or ``epsilon`` alone.

    ``clients`` are the people: one (features, targets) pair each, or a ``ClientData``. With a
    ``folder`` the run is kept there, ledger, checkpoint, log, statement and report, and the same
    call after a crash or Ctrl-C goes on where it stopped. ``mode="deployed"`` draws noise from the
    operating system and needs a folder; the default simulates, and protects nobody.
    """
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
    recipe, task, denoiser = asked(
        model=model,
        clients=clients,
        folder=place,
        plan=plan,
        epsilon=epsilon,
        delta=delta,
        local=local,
        denoiser=denoiser,
        server_rate=server_rate,
        schedule=schedule,
        averaging=averaging,
        standardise=standardise,
        loss=loss,
        metrics=metrics,
        test=test,
        test_from=test_from,
        population=None
        if population is None
        else str(path_of(population, "population", "people.sqlite").resolve()),
        budget=budget,
        mode=mode,
        engine=engine,
        seed=seed,
        device=device,
        block_size=block_size,
        evaluate_every=evaluate_every,
    )
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


def asked(
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
    given["standardise"] = standardise
    denoiser = denoiser or usual.denoiser
    recipe = Recipe(
        task=PYTHON,
        plan=plan,
        local=local or usual.local,
        denoiser=_named(denoiser),
        schedule=schedule or usual.schedule,
        server_rate=usual.server_rate if server_rate is None else server_rate,
        standardise=usual.standardise if standardise is None else standardise,
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
