"""Everything that ``train(epsilon=…)`` chooses, in one value, each choice with its reason."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from dpfedls.auto.planner import ENOUGH, ROUNDS, candidates, choose_plan, people_needed
from dpfedls.auto.rate import LEARNING_RATE, made_up, rates_on
from dpfedls.denoisers.adaptive import AdaptiveSmoothing
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD
from dpfedls.people.losses import Loss
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.stepping import NoiseRate

LOCAL = LocalSGD(steps=25, batch_size=10, learning_rate=LEARNING_RATE)
SMOOTHING = AdaptiveSmoothing()

WHY = {
    "local": "25 steps of 10 samples: as much work for everybody, whatever a person has; shorter "
    "trainings learn less from as much noise, longer ones hardly more",
    "denoiser": "smoothing along each axis of a tensor, as strong as its neighbours are seen to be "
    "alike in what was released; elsewhere none",
    "schedule": "a server rate that falls to zero averages the noise of the last rounds away",
    "plan.clip_norm": "follows the median length of the updates; 1 % more noise pays for it",
}


def plan_for(
    num_clients: int, epsilon: float, delta: float | None = None, rounds: int | None = None
) -> tuple[PrivacyPlan, dict[str, str]]:
    """The plan for a promise, and why it is that one."""
    counts = ROUNDS if rounds is None else [rounds]
    row = choose_plan(candidates(num_clients, epsilon, delta, rounds=counts))
    missing = people_needed(epsilon, row)
    if missing is not None:
        raise InputError(f"{missing}; give plan=… to train all the same")
    plan = row.plan
    over = f"{100 * (row.waste - 1):.0f} % above the least possible at this ε"
    if row.waste > ENOUGH and row.enough:
        over = "so little that more people a round would not be noticed"
    each = row.client_rounds / num_clients
    return plan, {
        "plan.rounds": f"{plan.rounds}: with {plan.expected_cohort:g} people a round the cheapest "
        f"plan whose noise is low enough, {over}; a person trains {each:.3g} times in the mean",
        "plan.delta": f"{plan.target_delta:.3g}"
        + (f" = {num_clients}^-1.1" if delta is None else ", as given"),
    }


class Fitted(NamedTuple):
    """What needs the model to be chosen."""

    server: NoiseRate
    learning: float
    why: dict[str, str]


def rates_for(model: nn.Module, loss: Loss, *, public: Any = None, shape_of: Any = None) -> Fitted:
    """Server and learning rate, by the model's answers to inputs that are nobody's.

    ``public`` are the server's own inputs; without any, random ones of the shape of ``shape_of``.
    """
    inputs = made_up(model, shape_of) if public is None else public
    rates = rates_on(model, inputs, loss)
    rate = NoiseRate(noise=rates.noise)
    source = "the test inputs" if public is not None else "random inputs of unit scale"
    return Fitted(
        rate,
        rates.learning,
        {
            "server_rate": f"so large that every weight gathers noise of {rate.noise:.2g} in the "
            f"whole run, but at most {rate.at_most:g}: what the model bears on {source}",
            "local.learning_rate": f"{rates.learning:g}: steps that the model bears on {source}; "
            "the clip norm follows their length",
        },
    )
