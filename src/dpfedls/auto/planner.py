"""How many rounds, and how many people in each: the cheapest plan whose noise is near the least.

A run's noise is measured against what it moves: z ÷ (rate · √rounds), the noise that is left in a
person's whole contribution. No plan goes below that of one release of everybody's at the same
(ε, δ); the ratio to it is the *waste*. More rounds or larger cohorts bring it towards 1, and cost
clients work. With many people there is little noise: then the number of rounds is the limit, so the
plan is the cheapest with the most rounds, and with people enough that their own differences are
averaged away. More rounds help long before that, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dpfedls.auto.rate import USUAL
from dpfedls.errors import require_positive
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.sampling import PoissonSampling
from dpfedls.stepping import noise_gathered

ENOUGH = 1.1
MOST_RATE = {"constant": 1.0, "root": 1.5, "linear": 2.0}  # so all of them go as far in a run
ROUNDS = (100, 200, 400)
# Where a server rate at its limit gathers no more than three times the noise that models bear, 400
# rounds are up to four points better than 100 or 200; above it they were no better.
SHORT_OF_ROUNDS = 3 * USUAL
HOPELESS = 25  # a server rate of less than one part in so many
MANY = 10**6
_LEAST_COHORT = 50
_LEAST_COHORT_OF_MANY = 1000  # of one image each, in one pass: 500 have a point less


class Row(NamedTuple):
    """A plan that could be made, and what it costs."""

    plan: PrivacyPlan
    waste: float
    most_rounds: bool  # of those that could be had

    @property
    def client_rounds(self) -> float:
        """Expected trainings of all people together."""
        return self.plan.expected_cohort * self.plan.rounds

    def enough(self, rounds_help: bool = True) -> bool:
        """Whether less noise would not help much; where there is little, more rounds or people."""
        if little_noise(self.plan):
            people = min(_LEAST_COHORT_OF_MANY, self.plan.num_clients)
            return self.most_rounds and round(self.plan.expected_cohort) >= people
        short = rounds_help and at_the_limit(self.plan) <= SHORT_OF_ROUNDS
        return self.waste <= ENOUGH and (self.most_rounds or not short)


def at_the_limit(plan: PrivacyPlan) -> float:
    """The noise in a weight that a falling server rate at its limit gathers, at clip norm 1."""
    # By the linear fall, with which thresholds were measured: plans do not depend on the schedule.
    return MOST_RATE["linear"] * noise_gathered("linear", plan, 1.0)


def little_noise(plan: PrivacyPlan) -> bool:
    """Whether that is less than models bear."""
    return at_the_limit(plan) <= USUAL


def candidates(
    num_clients: int,
    epsilon: float,
    delta: float | None = None,
    *,
    cohort_at_most: int | None = None,
    rounds_at_most: int | None = None,
    rounds: Sequence[int] = ROUNDS,
) -> Iterator[Row]:
    """Plans within the limits, from the cheapest to the dearest, each calibrated when asked for."""
    require_positive("num_clients", num_clients, "nobody to train on")
    for name, limit in (("cohort_at_most", cohort_at_most), ("rounds_at_most", rounds_at_most)):
        if limit is not None:
            require_positive(name, limit, "it is a limit on what clients can bear")
    cohorts = _steps(_LEAST_COHORT, min(cohort_at_most or num_clients, num_clients))
    most = rounds_at_most or max(rounds)
    counts = [count for count in rounds if count <= most] or [most]
    least = _plan(num_clients, num_clients, 1, delta).calibrated(epsilon).noise
    # Of two that cost the same the one with more rounds: it was no worse where both were tried.
    for cohort, count in sorted(
        ((cohort, count) for cohort in cohorts for count in counts),
        key=lambda pair: (pair[0] * pair[1], -pair[1]),
    ):
        plan = _plan(num_clients, cohort, count, delta).calibrated(epsilon)
        waste = plan.noise / (cohort / num_clients * math.sqrt(count)) / least
        yield Row(plan, waste, count == max(counts))


def choose_plan(rows: Iterator[Row], rounds_help: bool = True) -> Row:
    """The cheapest that is good enough, else the one that wastes least."""
    seen = []
    for row in rows:
        if row.enough(rounds_help):
            return row
        seen.append(row)
    return min(seen, key=lambda row: row.waste)


def people_needed(epsilon: float, row: Row, delta: float | None = None) -> int:
    """How many people a useful model takes at that promise, to two digits; at most ``MANY``."""
    people, over = row.plan.num_clients, _over(row)
    while over > 1 and people < MANY:
        # Noise falls a little slower than people grow in number, since δ falls too.
        people = _two_digits(max(1.2, over) * people)
        # What was promised to few may be no promise to many.
        allowed = delta if delta is None else min(delta, people**-1.1)
        over = _over(choose_plan(candidates(people, epsilon, allowed)))
    return min(people, MANY)


def _over(row: Row) -> float:
    """The noise of a run beside the most with which a model is of use."""
    return noise_gathered("linear", row.plan, 1.0) / (HOPELESS * USUAL)


def _two_digits(number: float) -> int:
    """Rounded up."""
    digit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / digit) * digit


def _plan(num_clients: int, cohort: float, rounds: int, delta: float | None) -> PrivacyPlan:
    return PrivacyPlan(
        sampler=PoissonSampling(rate=cohort / num_clients),
        num_clients=num_clients,
        rounds=rounds,
        clip_norm=AdaptiveClipping(),
        delta=delta,
    )


def _steps(least: int, most: int) -> list[int]:
    """1, 2, 5, 10, 20, … from the least to the most, both of them included."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return sorted({min(least, most), most, *(step for step in steps if least < step < most)})
