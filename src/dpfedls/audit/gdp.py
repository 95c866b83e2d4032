"""How much one real round tells about a person who takes part in it: a lower bound on μ."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from dpfedls.audit.bounds import Scores, gaussian_bound, threshold_bound
from dpfedls.audit.neighbours import Neighbours
from dpfedls.errors import InputError
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import RandomStreams

CONFIDENCE = 0.99
FEWEST = 100  # trials; below it the limits are too wide to say anything

Watch = Callable[[int], None]


class RoundAudit(msgspec.Struct, frozen=True):
    """What the trials show, beside what the plan claims, for one round with the person in it."""

    mu_lower: float  # the larger of the two below, which share the chance of failing
    mu_claimed: float
    mu_by_threshold: float
    mu_by_gaussian_fit: float
    trials: int  # on each side
    confidence: float

    @property
    def consistent(self) -> bool:
        """Whether the bound leaves the claim standing; false alarms: at most 1 − confidence."""
        return self.mu_lower <= self.mu_claimed


def audit_round(
    plan: PrivacyPlan,
    streams: RandomStreams,
    trials: int = 2000,
    confidence: float = CONFIDENCE,
    watch: Watch = lambda _: None,
) -> RoundAudit:
    """Run many real rounds with and without a worst-case person and tell them apart."""
    check_auditable(plan, trials)
    present, absent = round_scores(plan, streams, trials, watch)
    shared = 1 - (1 - confidence) / 2
    by_threshold = threshold_bound(present, absent, shared)
    by_fit = gaussian_bound(present, absent, shared)
    return RoundAudit(
        mu_lower=max(by_threshold, by_fit),
        mu_claimed=plan.sensitivity(1.0) / plan.noise_stddev(1.0),
        mu_by_threshold=by_threshold,
        mu_by_gaussian_fit=by_fit,
        trials=trials,
        confidence=confidence,
    )


def round_scores(
    plan: PrivacyPlan, streams: RandomStreams, trials: int, watch: Watch = lambda _: None
) -> tuple[Scores, Scores]:
    """The release along the canary's direction, with and without it, trial by trial.

    Trial k is round k, so that noise which does not change from round to round shows as well.
    """
    neighbours = Neighbours(plan)
    direction, update = neighbours.direction.double(), neighbours.worst()
    scores = np.empty((2, trials))
    for k in range(trials):
        for side, present in enumerate((True, False)):
            run = neighbours.run(update, present=present, round_=k, streams=streams)
            scores[side, k] = run.state.params.double() @ direction
        watch(k + 1)
    return scores[0], scores[1]


def run_epsilon(plan: PrivacyPlan, mu: float) -> float:
    """ε of the whole run at the plan's δ, if one round with the person in it were μ-GDP.

    Sampling and the number of rounds are taken as the plan says; the accountant is pld.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    noise = plan.sampler.sensitivity_in_clip_norms / mu
    return msgspec.structs.replace(plan, noise_multiplier=noise).epsilon()


def check_auditable(plan: PrivacyPlan, trials: int) -> None:
    """Refuse what makes no claim, and what could show nothing."""
    if not plan.is_private:
        raise InputError(
            "plan.noise_multiplier is 0: no noise, so no privacy is claimed and there is nothing "
            "to audit; choose a recipe with noise, or set plan.noise_multiplier=1"
        )
    if trials < FEWEST:
        raise InputError(f"trials must be at least {FEWEST}, got {trials}; 2000 takes seconds")
