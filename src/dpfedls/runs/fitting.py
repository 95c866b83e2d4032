"""What a recipe leaves to us, once its model is known."""

from __future__ import annotations

from msgspec.structs import replace

from dpfedls.auto.by_model import ALL, Fitted, asking_for_scale, of_usual_inputs, rates_for
from dpfedls.auto.choices import LOCAL_FIELDS, OPEN, plan_for
from dpfedls.auto.inputs import inputs_for, measuring
from dpfedls.auto.rate import made_up
from dpfedls.errors import InputError
from dpfedls.parameters import Layout
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.lazy import LazyClients, example
from dpfedls.people.rescale import Rescale, Rescaling, last_layer
from dpfedls.people.samples import Samples, each
from dpfedls.people.survey import Measured, Survey
from dpfedls.people.units import AS_GIVEN, AsGiven, standardised, unmeasured
from dpfedls.runs.recipe import Recipe
from dpfedls.tasks.task import Task

_FEW = 1000  # test samples that rates are tried on


def is_open(recipe: Recipe) -> bool:
    """Whether something is left to choose that depends on the model."""
    return recipe.server_rate == "auto" or OPEN in recipe.chosen.values()


def ready(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with its noise, and what fits the model and public inputs; itself if it has.

    Of people's samples the shape alone is looked at, which all of them have in common.
    """
    if recipe.plan.noise_multiplier is None and recipe.calibrate is not None:
        recipe = recipe.resolved()
    if not is_open(recipe):
        return recipe
    check_model(task.model)
    ours = frozenset(field for field in LOCAL_FIELDS if f"local.{field}" in recipe.chosen)
    open_ = ours | ({"server_rate"} if recipe.server_rate == "auto" else frozenset())
    samples = _shown(task)
    if recipe.chosen.get("standardise") == OPEN:
        recipe = _with_units(recipe, task, samples, open_ >= ALL)
    # In measured units made-up inputs are more alike to people's than public ones as they are.
    public = task.test is not None and not isinstance(recipe.standardise, Measured)
    if public and recipe.standardise:
        few = each(lambda part: part[:_FEW], samples)
        samples = units_of(recipe, task).to(few[1].device)(few[0]), few[1]

    def rates_of(recipe: Recipe) -> Fitted:
        known = (recipe.plan, recipe.schedule, task.model, task.loss)
        measured = isinstance(recipe.standardise, Measured) and recipe.standardise.columns
        return rates_for(*known, samples=samples, public=public, measured=measured, open_=open_)

    rates = rates_of(recipe)
    if not rates.rounds_help and "plan.rounds" in recipe.chosen:
        recipe = _without_more_rounds(recipe)
        if isinstance(recipe.standardise, Measured) and "standardise" in recipe.chosen:
            recipe = _with_units(recipe, task, samples, ours=True)
        rates = rates_of(recipe)
    local, why = rates.local, rates.why
    if not open_ >= ALL:  # what is given stays
        local = {field: value for field, value in local.items() if field in open_}
        kept = {"plan.clip_norm", *open_, *(f"local.{field}" for field in open_)}
        why = {key: line for key, line in why.items() if key in kept}
    recipe = replace(recipe, local=replace(recipe.local, **local))
    if recipe.server_rate == "auto":
        recipe = replace(recipe, server_rate=rates.server)
    if rates.clip_norm is not None and "plan.clip_norm" in recipe.chosen:
        # Noise and ε are the same for every quantile, so the plan may still change here.
        recipe = replace(recipe, plan=replace(recipe.plan, clip_norm=rates.clip_norm))
    else:
        why = {key: line for key, line in why.items() if key != "plan.clip_norm"}
    if recipe.chosen.get("rescale") == OPEN:
        recipe, said = _with_scale(recipe, task, samples, rates, open_ >= ALL)
        why |= said
    chosen = recipe.chosen | why
    if recipe.local.steps is None:  # it has epochs instead
        chosen = {key: line for key, line in chosen.items() if key != "local.steps"}
    return replace(recipe, chosen=chosen)


def units_of(recipe: Recipe, task: Task) -> AsGiven:
    """The units in which people begin to train: as given, or standardised by the test inputs."""
    if recipe.standardise not in (True, "always"):
        return AS_GIVEN
    if task.test is None:
        raise InputError(
            "standardise, given or chosen when this run began, asks for the test samples, "
            "since mean and scale of people's own inputs are private; give test=…, or scale inputs "
            "by constants that you know"
        )
    units = standardised(task.model, task.test[0], recipe.standardise == "always")
    if units is None:
        raise InputError(
            "standardise needs two test inputs or more, one floating-point tensor, and a "
            "model whose first layer, linear or a convolution, reads them as they are and trains; "
            "leave it out"
        )
    return units


def survey_of(recipe: Recipe, task: Task) -> Survey | None:
    """The questions of the first rounds, where units are measured."""
    if not isinstance(recipe.standardise, Measured):
        return None
    units = unmeasured(task.model, _shown(task)[0])
    if units is None:
        raise InputError(
            'standardise = { kind = "measured" } needs inputs that are one floating-point tensor, '
            "and a model whose first layer, linear or a convolution, reads them as they are and "
            "trains; leave it out"
        )
    return Survey(recipe.standardise, units, recipe.plan.answer_noise)


def rescaling_of(recipe: Recipe, task: Task) -> Rescaling | None:
    """What the last rounds ask for, where scores are rescaled."""
    if not isinstance(recipe.rescale, Rescale):
        return None
    last = last_layer(task.model, _shown(task)[0])
    if last is None:
        raise InputError(
            "rescale needs a model whose last layer is linear, with a bias, trains and gives the "
            "outputs as they are, and inputs that are one floating-point tensor; leave it out"
        )
    return Rescaling(recipe.rescale, Layout.of(task.model), *last, recipe.plan.answer_noise)


def _with_units(recipe: Recipe, task: Task, samples: Samples, ours: bool) -> Recipe:
    """The recipe with the units of its inputs; as given where rates are, and on nodes."""
    chosen = {key: line for key, line in recipe.chosen.items() if key != "standardise"}
    if not ours or recipe.nodes is not None:
        return replace(recipe, chosen=chosen)
    tried = samples if task.test is not None else made_up(task.model, samples)
    usually = of_usual_inputs(recipe.plan, task.model, task.loss, tried)
    if task.test is None:
        measured, why = measuring(recipe.plan, task.model, samples[0], usually)
        return replace(recipe, standardise=measured or False, chosen=chosen | {"standardise": why})
    standardise, why = inputs_for(task.model, task.test, task.loss, usually)
    return replace(recipe, standardise=standardise, chosen=chosen | {"standardise": why})


def _with_scale(
    recipe: Recipe, task: Task, samples: Samples, rates: Fitted, ours: bool
) -> tuple[Recipe, dict[str, str]]:
    """The recipe with last rounds that ask for the scale of scores, where that is known to help."""
    if not ours or recipe.nodes is not None:
        chosen = {key: line for key, line in recipe.chosen.items() if key != "rescale"}
        return replace(recipe, chosen=chosen), {}
    asks, why = asking_for_scale(recipe.plan, task.model, samples[0], rates)
    if asks is not None and asks.rounds + recipe.first_rounds >= recipe.plan.rounds:
        asks, why = None, "false: the rounds that ask for units leave too few"
    return replace(recipe, rescale=asks or False), {"rescale": why}


def _shown(task: Task) -> Samples:
    """The test samples, or of a person's the first, of which the shape alone is looked at."""
    if task.test is not None:
        check_samples(task.model, task.test, "test", task.loss)
        return task.test
    if isinstance(task.data, LazyClients):
        check_samples(task.model, task.data, "clients", task.loss)
    samples = example(task.data)
    check_samples(task.model, samples, "clients", task.loss)
    return samples


def _without_more_rounds(recipe: Recipe) -> Recipe:
    """The recipe with the plan for the same promise where more rounds are of no help."""
    given, promise = recipe.plan, recipe.calibrate
    epsilon, accountant = given.epsilon(), "pld"
    if promise is not None:
        epsilon, accountant = promise.epsilon, promise.accountant
    plan, why = plan_for(given.num_clients, epsilon, given.delta, rounds_help=False)
    if (plan.sampler, plan.rounds) == (given.sampler, given.rounds):
        return recipe
    if "plan.clip_norm" not in recipe.chosen:
        plan = replace(plan, clip_norm=given.clip_norm)
    chosen = {key: why.get(key, line) for key, line in recipe.chosen.items()}
    return replace(recipe, plan=plan.calibrated(epsilon, accountant), chosen=chosen)
