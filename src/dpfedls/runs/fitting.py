"""What a recipe leaves to us, once its model is known."""

from __future__ import annotations

import msgspec

from dpfedls.auto.by_model import rates_for
from dpfedls.auto.choices import OPEN
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.lazy import LazyClients, someone
from dpfedls.people.samples import each
from dpfedls.runs.recipe import Recipe
from dpfedls.tasks.task import Task


def is_open(recipe: Recipe) -> bool:
    """Whether something is left to choose that depends on the model."""
    return recipe.server_rate == "auto" or OPEN in recipe.chosen.values()


def ready(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with its noise, and rates that fit the model and public inputs; itself if it has.

    Of people's samples the shape alone is looked at, which all of them have in common.
    """
    if recipe.plan.noise_multiplier is None and recipe.calibrate is not None:
        recipe = recipe.resolved()
    if not is_open(recipe):
        return recipe
    check_model(task.model)
    why = {}
    learning, shorten = (
        recipe.chosen.get(f"local.{key}") == OPEN for key in ("learning_rate", "shorten")
    )
    known = (recipe.plan, recipe.schedule, task.model, task.loss)
    if task.test is None:
        if isinstance(task.data, LazyClients):
            check_samples(task.model, task.data, "clients", task.loss)
        first = someone(task.data)
        samples = each(lambda values: values[:1], task.data.client(first))
        check_samples(task.model, samples, f"clients[{first}]", task.loss)
        rates = rates_for(*known, samples=samples, public=False, learning=learning)
    else:
        check_samples(task.model, task.test, "test", task.loss)
        rates = rates_for(*known, samples=task.test, public=True, learning=learning)
    server, local = recipe.server_rate, recipe.local
    if server == "auto":
        server, why["server_rate"] = rates.server, rates.why["server_rate"]
    if learning:
        local = msgspec.structs.replace(local, learning_rate=rates.learning)
        why["local.learning_rate"] = rates.why["local.learning_rate"]
    if shorten:
        local = msgspec.structs.replace(local, shorten=rates.shorten)
        why["local.shorten"] = rates.why["local.shorten"]
    plan = recipe.plan
    if rates.clip_norm is not None and "plan.clip_norm" in recipe.chosen:
        # Noise and ε are the same for every quantile, so the plan may still change here.
        plan = msgspec.structs.replace(plan, clip_norm=rates.clip_norm)
        why["plan.clip_norm"] = rates.why["plan.clip_norm"]
    return msgspec.structs.replace(
        recipe, plan=plan, server_rate=server, local=local, chosen=recipe.chosen | why
    )
