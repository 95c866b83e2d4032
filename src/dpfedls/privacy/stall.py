"""Whether learning has stalled: a vote of each cohort, and what follows from it.

Where people differ, long local trainings end where no mean is good for anybody: the model stands
still, with much of its budget left. Short ones, and long steps of the server, then lead further.
So in some rounds the one coordinate that the adaptive clip norm has asks another question: has the
model less loss on your samples than an earlier one? Its weight and its noise are the same, so it
costs nothing more. All that is kept here is public.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dpfedls.privacy.plan import PrivacyPlan

WINDOWS = 10  # of all rounds; a vote compares with the model at the start of the window before
BELOW, DEVIATIONS = 0.6, 2.0  # stalled: fewer than this say yes, by so many standard deviations
HALF = 0.5  # say yes where a model only moves to and fro


class Votes(NamedTuple):
    """What is known of a run's votes before a round."""

    older: Any  # the model at the start of the window before this one
    newer: Any  # and of this one
    total: float = 0.0  # of the shares that said yes in this window
    asked: int = 0  # rounds of this window that did ask
    stalled: bool = False  # found in an earlier window, once and for all

    def to(self, device: Any) -> Votes:
        """With its models on another device."""
        return self._replace(older=self.older.to(device), newer=self.newer.to(device))


def reference_model(votes: Votes | None, plan: PrivacyPlan, t: int) -> Any:
    """The model that round t's cohort compares with; None where nobody is asked.

    Odd rounds ask, from the third window to the middle of the run, if a window's votes can tell
    ``HALF`` from ``BELOW`` in spite of their noise.
    """
    if votes is None or votes.stalled:
        return None
    window = _window(plan)
    asks = t % 2 and 2 * window <= t < plan.rounds / 2 and _doubt(plan, window / 2) < BELOW - HALF
    return votes.older if asks else None


def votes_after(
    votes: Votes | None, plan: PrivacyPlan, t: int, share: float | None, model: Any
) -> Votes | None:
    """After round t, in which ``share`` said yes if they were asked, and which made ``model``."""
    if votes is None:
        return None
    if share is not None and reference_model(votes, plan, t) is not None:
        votes = votes._replace(total=votes.total + share, asked=votes.asked + 1)
    if (t + 1) % _window(plan):
        return votes
    _, newer, total, asked, stalled = votes
    found = asked > 0 and total / asked + _doubt(plan, asked) < BELOW
    return Votes(newer, model, stalled=stalled or found)


def _window(plan: PrivacyPlan) -> int:
    return max(1, plan.rounds // WINDOWS)


def _doubt(plan: PrivacyPlan, count: float) -> float:
    """How far the mean of so many rounds' shares may be off: by noise, and by who was drawn."""
    people = plan.expected_cohort
    noise = plan.noise_stddev(1.0) / (people * plan.clipping.indicator(1.0))
    return DEVIATIONS * math.sqrt((noise**2 + 0.25 / people) / count)
