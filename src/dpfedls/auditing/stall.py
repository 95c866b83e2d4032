"""Votes on whether learning has stalled, and what follows: the rules, written down a second time.

In each odd round of the first half, from the third tenth of all rounds on, people are asked whether
the model has less loss on their own samples than that of the start of the tenth before. The noisy
shares of a tenth tell, at its end, whether learning has stalled: once and for all. Where noise and
draw would hide the difference between 0.5 and 0.6, nobody is asked.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import torch

from dpfedls.denoising import Memory
from dpfedls.parameters import Vector
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.stall import Votes
from dpfedls.runs.recipe import Recipe


def known(recipe: Recipe, models: list[Vector], shares: list[float]) -> Votes | None:
    """What is known of votes after so many trainings: from the share of each, and all models."""
    if recipe.local.shorten is None:
        return None
    plan, tenth = recipe.plan, _tenth(recipe.plan)
    begun = len(shares) // tenth * tenth
    found = any(_stalls(plan, _said(plan, shares, t)) for t in range(0, begun, tenth))
    now = [] if found else _said(plan, shares, begun)
    total = reduce(add, now, 0.0)  # in their order: to the last bit
    return Votes(models[max(0, begun - tenth)], models[begun], total, len(now), found)


def named(votes: Votes | None) -> Memory:
    """As a checkpoint keeps them."""
    if votes is None:
        return {}
    said = torch.tensor(votes[2:], dtype=torch.float64)
    return {"votes.older": votes.older, "votes.newer": votes.newer, "votes.said": said}


def earlier(recipe: Recipe, t: int, votes: Votes | None) -> Vector | None:
    """The model with which round t's cohort compares; None where nobody is asked."""
    if votes is None or votes.stalled or not _asked(recipe.plan, t):
        return None
    return votes.older


def pace(recipe: Recipe, votes: Votes | None) -> float:
    """What local learning rates are multiplied by, and the limit of the server's is divided by."""
    shorten = recipe.local.shorten
    return 1 / shorten if shorten is not None and votes is not None and votes.stalled else 1.0


def first_asked(recipe: Recipe) -> int | None:
    """The first round in which people vote, counted from 0; None where they never do."""
    rounds = range(recipe.plan.rounds if recipe.local.shorten is not None else 0)
    return next((t for t in rounds if _asked(recipe.plan, t)), None)


def _asked(plan: PrivacyPlan, t: int) -> bool:
    tenth = _tenth(plan)
    return t % 2 == 1 and 4 * tenth <= 2 * t < plan.rounds and _doubt(plan, tenth / 2) < 0.1


def _tenth(plan: PrivacyPlan) -> int:
    return max(1, plan.rounds // 10)


def _said(plan: PrivacyPlan, shares: list[float], begun: int) -> list[float]:
    """Of one tenth, the shares of rounds in which people were asked."""
    rounds = range(begun, min(begun + _tenth(plan), len(shares)))
    return [shares[t] for t in rounds if _asked(plan, t)]


def _stalls(plan: PrivacyPlan, said: list[float]) -> bool:
    return bool(said) and math.fsum(said) / len(said) < 0.6 - _doubt(plan, len(said))


def _doubt(plan: PrivacyPlan, rounds: float) -> float:
    """Two standard deviations of the mean share of so many rounds: of the noise and of the draw."""
    people, clipping = plan.expected_cohort, plan.clipping
    noise = plan.noise * clipping.contribution(1.0) / (clipping.indicator(1.0) * people)
    return 2 * math.sqrt((noise**2 + 0.25 / people) / rounds)
