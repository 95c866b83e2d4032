"""The rates that a recipe leaves to us, once its model is known."""

from __future__ import annotations

import msgspec

from dpfedls.auto.choices import course_for, rates_for
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.lazy import LazyClients, someone
from dpfedls.people.samples import each
from dpfedls.runs.recipe import Recipe
from dpfedls.tasks.task import Task


def fitted(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with numbers where it says "auto": from the model and from public inputs.

    Of people's samples the shape alone is looked at, which all of them have in common.
    """
    if recipe.server_rate != "auto":
        return recipe
    check_model(task.model)
    open_ = "schedule" in recipe.chosen and recipe.averaging == 0
    course = course_for(recipe.plan, task.model) if open_ else None
    if course is not None:
        schedule, averaging, why = course
        chosen = recipe.chosen | why
        recipe = msgspec.structs.replace(
            recipe, schedule=schedule, averaging=averaging, chosen=chosen
        )
    known = (recipe.plan, recipe.schedule, task.model, task.loss)
    if task.test is None:
        if isinstance(task.data, LazyClients):
            check_samples(task.model, task.data, "clients", task.loss)
        first = someone(task.data)
        samples = each(lambda values: values[:1], task.data.client(first))
        check_samples(task.model, samples, f"clients[{first}]", task.loss)
        rates = rates_for(*known, samples=samples, public=False)
    else:
        check_samples(task.model, task.test, "test", task.loss)
        rates = rates_for(*known, samples=task.test, public=True)
    local, why = recipe.local, {"server_rate": rates.why["server_rate"]}
    if "local" in recipe.chosen:
        local, why = msgspec.structs.replace(local, learning_rate=rates.learning), rates.why
    chosen = recipe.chosen | why
    return msgspec.structs.replace(recipe, server_rate=rates.server, local=local, chosen=chosen)
