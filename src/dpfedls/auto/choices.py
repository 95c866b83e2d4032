"""Everything that ``train(epsilon=…)`` chooses, in one value, each choice with its reason."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace
from torch import nn

from dpfedls.auto.planner import (
    ENOUGH,
    MANY,
    MOST_RATE,
    ROUNDS,
    candidates,
    choose_plan,
    little_noise,
    people_needed,
)
from dpfedls.auto.rate import IN_CLIP_NORMS, LEARNING_RATE, made_up, rates_on
from dpfedls.denoisers.adaptive import AdaptiveSmoothing
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD
from dpfedls.people.losses import Loss
from dpfedls.people.samples import Samples, as_input
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.stepping import NoiseRate, Schedule, ServerRate, noise_gathered

# First steps of 0.3 clip norms: at 0.2 noise between 25 batches is as long as the norm, which then
# falls and falls; at 0.5 steps that overshoot still end on the sphere, and it grows.
LOCAL = LocalSGD(steps=25, batch_size=10, learning_rate=LEARNING_RATE, retry_step=0.3)
SMOOTHING = AdaptiveSmoothing()
# For as long a way 3 ÷ √8 = 1.06 times the noise of a constant rate (a linear fall: 2 ÷ √3 = 1.15),
# and the noise of the last rounds is averaged away all the same.
SCHEDULE: Schedule = "root"

# Where there is little noise. With one sample a person most updates shrink to nothing once they are
# recognised, and the median with them; people disagree, so their mean is a thirtieth of the norm.
CLIP_LESS, MOST_RATE_FOR_MANY = 0.8, 20.0
# Where a rate at its limit gathers no more noise than the model bears, the limit slows learning and
# not noise. Then short ways of people who differ, and long steps of the server, lead to a better
# model: the mean of where each would end alone is not where all of them together would. After a
# stall everywhere: a sixteenth in all, the best of 4, 8 and 16.
SHORTER, SHORTEST = 8.0, 16.0
# Where the loss has an exponential (auto.exponential). Of 0.8, 0.9 and 0.95 the last is best; but
# with noise that leaves a server rate below 1 the norm is not found in time, and the first is.
# The learning rate times the server rate is at most 0.004, so trainings are as short as the
# server's steps can make up for. No fixed part of the usual rate is good everywhere: 1/16 stops
# half-way where there is much noise, 1/8 is too long where there is little.
CLIP_FEW, ENOUGH_RATE, SHORT = 0.95, 1.0, 0.004

OPEN = "to be chosen when the model is known"
WHY = {
    "local.steps": "25: as much work for everybody, whatever a person has; shorter trainings learn "
    "less from as much noise, longer ones hardly more",
    "local.batch_size": "10: the size with which the other choices were measured",
    "local.learning_rate": OPEN,
    "local.retry_step": "a client whose first step is too long for the clip norm, and whose loss "
    "does not halve, trains again with shorter steps",
    "local.shorten": OPEN,
    "denoiser": "smoothing along each axis of a tensor, with a strength estimated from past "
    "releases; none where neighbours are not similar",
    "schedule": "a server rate that falls to zero averages the noise of the last rounds away",
}


def plan_for(
    num_clients: int, epsilon: float, delta: float | None = None, rounds: int | None = None
) -> tuple[PrivacyPlan, dict[str, str]]:
    """The plan for a promise, and why it is that one."""
    counts = ROUNDS if rounds is None else [rounds]
    row = choose_plan(candidates(num_clients, epsilon, delta, rounds=counts))
    needed = people_needed(epsilon, row, delta)
    if needed > num_clients:
        many = f"about {needed}" if needed < MANY else "more than a million"
        raise InputError(
            f"{num_clients} people at ε = {epsilon:g} leave more noise than signal; a useful model "
            f"needs {many} people, or a larger ε: give plan=… to train all the same"
        )
    plan, norm = row.plan, "the median length of the updates"
    if little_noise(plan):
        plan = replace(plan, clip_norm=AdaptiveClipping(quantile=CLIP_LESS))
        norm = f"a length that {CLIP_LESS:.0%} of the updates do not reach: there is little noise"
    over = f"{100 * (row.waste - 1):.0f} % above the least possible at this ε"
    if row.waste > ENOUGH and row.enough:
        over = "so little that less would not be noticed"
    each = row.client_rounds / num_clients
    return plan, {
        "plan.rounds": f"{plan.rounds}: with {plan.expected_cohort:g} people a round the cheapest "
        f"plan whose noise is low enough, {over}; a person trains {each:.3g} times on average",
        "plan.delta": f"{plan.target_delta:.3g}"
        + (f" = {num_clients}^-1.1" if delta is None else ", as given"),
        "plan.clip_norm": f"follows {norm}; 1 % more noise pays for it",
    }


class Fitted(NamedTuple):
    """What needs the model to be chosen."""

    server: ServerRate
    learning: float
    shorten: float | None
    clip_norm: AdaptiveClipping | None  # None: as the plan has it
    why: dict[str, str]


def rates_for(
    plan: PrivacyPlan,
    schedule: Schedule,
    model: nn.Module,
    loss: Loss,
    *,
    samples: Samples,
    public: bool,
    learning: bool = True,
) -> Fitted:
    """Server and learning rate, by the model's answers to public or random inputs.

    ``samples`` that are public, the server's own, are used; of others the shape alone, made up.
    Where the outputs have units of their own, noise is measured in clip norms, which follow them,
    and the learning rate follows the loss's curvature. ``learning``: whether the learning rate is
    to be chosen; to one that is given the server rate keeps its usual limit. A loss with an
    exponential asks for a long clip norm and short trainings. No ε depends on any of it.
    """
    inputs, targets = samples if public else made_up(model, samples)
    rates = rates_on(model, inputs, loss, as_input(targets).cpu())
    most = MOST_RATE[schedule]
    source = "the test inputs" if public else "random inputs of unit scale"
    gathered, steps = noise_gathered(schedule, plan, 1.0), rates.learning
    length = f"steps that the model tolerates on {source}"
    votes, clip_norm = SHORTEST, None
    if rates.noise is None:
        # With a norm that is given, short updates would be lost in the noise.
        adapts = plan.clipping if isinstance(plan.clipping, AdaptiveClipping) else None
        short = rates.exponential and adapts is not None and learning
        most = MOST_RATE_FOR_MANY if short else most
        server: ServerRate = min(most, IN_CLIP_NORMS / gathered) if gathered else most
        said = f"every weight gathers noise of {IN_CLIP_NORMS:g} clip norms in the whole run"
        if rates.exponential and adapts is not None:
            few = CLIP_FEW if server >= ENOUGH_RATE else CLIP_LESS
            clip_norm = replace(adapts, quantile=few)
        if short:
            steps = float(f"{min(rates.learning, SHORT) / max(server, 1.0):.2g}")
            length = (
                f"{length}, or shorter, as the loss has an exponential and the server's are long"
            )
            votes = None
    else:
        if most > 1 and little_noise(plan):
            most = MOST_RATE_FOR_MANY
        elif most > 1 and learning and most * gathered <= rates.noise:
            most, steps = MOST_RATE_FOR_MANY, rates.learning / SHORTER
            votes = SHORTEST / SHORTER
            length = f"1/{SHORTER:g} of {length}, and a larger server rate: noise is little"
        server = NoiseRate(noise=rates.noise, at_most=most)
        said = (
            f"every weight gathers noise of {rates.noise:.2g}, the most that the model tolerates "
            f"on {source}"
        )
    why = {
        "server_rate": f"so large that {said}; but at most {most:g}",
        "local.learning_rate": f"{steps:g}: {length}; the clip norm follows their length",
        "local.shorten": "none: trainings are short from the start, and votes changed nothing"
        if votes is None
        else f"{votes:g}: if cohorts vote that learning stalls, trainings become "
        "so many times shorter, and the server's steps longer; a vote costs no privacy",
    }
    if clip_norm is not None:
        why["plan.clip_norm"] = (
            f"follows a length that {clip_norm.quantile:.0%} of the updates do not reach: the loss "
            "has an exponential, so a few are long and count; 1 % more noise pays for it"
        )
    return Fitted(server, steps, votes, clip_norm, why)
