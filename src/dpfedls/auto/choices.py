"""What ``train(epsilon=…)`` chooses before it knows the model, each choice with its reason."""

from __future__ import annotations

from msgspec.structs import replace

from dpfedls.auto.planner import (
    ENOUGH,
    MANY,
    ROUNDS,
    candidates,
    choose_plan,
    little_noise,
    people_needed,
)
from dpfedls.auto.rate import LEARNING_RATE
from dpfedls.denoisers.adaptive import AdaptiveSmoothing
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.stepping import Schedule

# First steps of 0.3 clip norms: at 0.2 differences between batches fill the norm, which then keeps
# shrinking; at 0.5 steps that overshoot still end on the sphere, and it grows.
LOCAL = LocalSGD(steps=25, batch_size=10, learning_rate=LEARNING_RATE, retry_step=0.3)
SMOOTHING = AdaptiveSmoothing()
# For as long a way 3 ÷ √8 = 1.06 times the noise of a constant rate (a linear fall: 2 ÷ √3 = 1.15),
# and the noise of the last rounds is averaged away all the same.
SCHEDULE: Schedule = "root"

# Where there is little noise. With one sample a person most updates shrink to nothing once they are
# recognised, and the median with them. At 0.8 a model is as accurate, but its loss is larger.
CLIP_LESS = 0.9

OPEN = "to be chosen when the model is known"
# Of local training, what a model may change: only if all of it is ours, how long it is.
LOCAL_FIELDS = frozenset({"steps", "learning_rate", "retry_step", "shorten"})
WHY = {
    "local.steps": "25: as much work for everybody, whatever a person has; shorter trainings learn "
    "less from as much noise, longer ones hardly more",
    "local.batch_size": "10: the size with which the other choices were measured",
    "local.learning_rate": OPEN,
    "local.retry_step": "a client whose first step is too long for the clip norm, and whose loss "
    "does not halve, trains again with shorter steps",
    "local.shorten": OPEN,
    "standardise": OPEN,
    "rescale": OPEN,
    "denoiser": "smoothing along each axis of a tensor, with a strength estimated from past "
    "releases; none where neighbours are not similar",
    "schedule": "a server rate that falls to zero averages the noise of the last rounds away",
}


def plan_for(
    num_clients: int,
    epsilon: float,
    delta: float | None = None,
    rounds: int | None = None,
    rounds_help: bool = True,
) -> tuple[PrivacyPlan, dict[str, str]]:
    """The plan for a promise, and why it is that one.

    More rounds do not help where the loss has an exponential, which only the model's loss tells.
    """
    counts = ROUNDS if rounds is None else [rounds]
    row = choose_plan(candidates(num_clients, epsilon, delta, rounds=counts), rounds_help)
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
    if row.waste > ENOUGH and row.enough():
        over = "so little that less would not be noticed"
    each = row.client_rounds / num_clients
    rounds_too = ", with rounds enough" if row.most_rounds and not rounds else ""
    return plan, {
        "plan.rounds": f"{plan.rounds}: with {plan.expected_cohort:g} people a round the cheapest "
        f"plan whose noise is low enough{rounds_too}, {over}; a person trains {each:.3g} times on "
        "average",
        "plan.delta": f"{plan.target_delta:.3g}"
        + (f" = {num_clients}^-1.1" if delta is None else ", as given"),
        "plan.clip_norm": f"follows {norm}; 1 % more noise pays for it",
    }
