"""Whether learning has stalled: a vote of each cohort, and what follows from it.

Where people differ, long local trainings end where no mean is good for anybody: the model stands
still, with much of its budget left. Short ones, and long steps of the server, then lead further.
So in some rounds the one coordinate that the adaptive clip norm has asks another question: has the
model less loss on your samples than an earlier one? Its weight and its noise are the same, so it
costs nothing more. All that is kept here is public.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from dpfedls.parameters import Vector
from dpfedls.privacy.plan import PrivacyPlan

Memory: TypeAlias = dict[str, Tensor]

WINDOWS = 10  # of all rounds; a vote compares with the model at the start of the window before
BELOW, DEVIATIONS = 0.6, 2.0  # stalled: fewer than this say yes, by so many standard deviations
HALF = 0.5  # say yes where a model only moves to and fro


def first_votes(params: Vector) -> Memory:
    """Before the first round: the model is its own mark, and nobody has voted."""
    return {_OLDER: params, _NEWER: params, _SAID: torch.zeros(3, dtype=torch.float64)}


def earlier(memory: Memory, plan: PrivacyPlan, t: int) -> Vector | None:
    """The model that round t's cohort compares with; None where nobody is asked.

    From the third window to the middle of the run, if a window's votes can tell ``HALF`` from
    ``BELOW`` in spite of their noise.
    """
    window = _window(plan)
    asked = t % 2 and 2 * window <= t < plan.rounds / 2 and _doubt(plan, window / 2) < BELOW - HALF
    return memory[_OLDER] if memory and asked and not stalled(memory) else None


def stalled(memory: Memory) -> bool:
    """Whether it has been found, from which on trainings are short."""
    return bool(memory and memory[_SAID][2])


def following(
    memory: Memory, plan: PrivacyPlan, t: int, share: float | None, params: Vector
) -> Memory:
    """After round t, in which ``share`` said yes if they were asked, and which made ``params``."""
    if not memory:
        return {}
    said = memory[_SAID].clone()
    if earlier(memory, plan, t) is not None and share is not None:
        said += said.new_tensor([share, 1.0, 0.0])
    older, newer = memory[_OLDER], memory[_NEWER]
    if (t + 1) % _window(plan) == 0:
        total, count, before = said.tolist()
        found = count > 0 and total / count + _doubt(plan, count) < BELOW
        older, newer = newer, params
        said = said.new_tensor([0.0, 0.0, before or found])
    return {_OLDER: older, _NEWER: newer, _SAID: said}


def _window(plan: PrivacyPlan) -> int:
    return max(1, plan.rounds // WINDOWS)


def _doubt(plan: PrivacyPlan, count: float) -> float:
    """How far the mean of so many rounds' shares may be off: by noise, and by who was drawn."""
    people = plan.expected_cohort
    noise = plan.noise_stddev(1.0) / (people * plan.clipping.indicator(1.0))
    return DEVIATIONS * math.sqrt((noise**2 + 0.25 / people) / count)


_OLDER, _NEWER, _SAID = "votes.older", "votes.newer", "votes.said"  # said: sum, count, found
