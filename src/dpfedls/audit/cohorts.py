"""Whether cohorts are drawn as the plan claims; amplification by sampling rests on it."""

from __future__ import annotations

import msgspec
import numpy as np
from scipy import stats

from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import RandomStreams
from dpfedls.sampling import FixedSizeSampling, Indices

FALSE_ALARMS = 1e-3  # of all tests below together


class CohortAudit(msgspec.Struct, frozen=True):
    """What was wrong with the cohorts drawn; nothing, one hopes."""

    rounds: int
    problems: list[str]
    false_alarms: float = FALSE_ALARMS


def audit_cohorts(plan: PrivacyPlan, streams: RandomStreams, rounds: int = 1000) -> CohortAudit:
    """Draw cohorts as the rounds of a run do and test them against the plan's event."""
    cohorts = [plan.sampler.sample(plan.num_clients, streams.sampling(t)) for t in range(rounds)]
    problems = _malformed(cohorts, plan.num_clients)
    if not problems:
        tests = {**_sizes(plan, cohorts), **_members(plan, cohorts)}
        problems = [text for text, p in tests.items() if p < FALSE_ALARMS / len(tests)]
    return CohortAudit(rounds, problems)


def _malformed(cohorts: list[Indices], num_clients: int) -> list[str]:
    if any(len(np.unique(c)) != len(c) for c in cohorts):
        return ["somebody is in a cohort twice"]
    if any(len(c) and (c.min() < 0 or c.max() >= num_clients) for c in cohorts):
        return ["a cohort holds somebody who is not in the population"]
    return []


def _sizes(plan: PrivacyPlan, cohorts: list[Indices]) -> dict[str, float]:
    """p-values of the cohorts' sizes, exact: constant, or binomial in mean and in spread."""
    sizes, n, q = np.array([len(c) for c in cohorts]), plan.num_clients, plan.round_event.rate
    if isinstance(plan.sampler, FixedSizeSampling):
        return {"cohorts are not of the size claimed": float((sizes == plan.sampler.cohort).all())}
    centre, width = n * q, 0.67 * np.sqrt(n * q * (1 - q))
    near = np.arange(n + 1)
    near = near[np.abs(near - centre) <= width + 1e-9]
    chance = min(1.0, float(stats.binom.pmf(near, n, q).sum()))
    inside = int(np.isin(sizes, near).sum())
    return {
        "cohorts are not as large, on average, as the rate says": _binomial(
            int(sizes.sum()), n * len(sizes), q
        ),
        "cohort sizes do not vary as those of independent choices do": _binomial(
            inside, len(sizes), chance
        ),
    }


def _members(plan: PrivacyPlan, cohorts: list[Indices]) -> dict[str, float]:
    """p-values of who is in: everybody equally often, and one round tells nothing of the next."""
    q = plan.round_event.rate
    counts = np.bincount(np.concatenate(cohorts), minlength=plan.num_clients)
    unlike = counts[np.argmax(np.abs(counts - q * len(cohorts)))]
    pairs = [(a, b) for a, b in zip(cohorts[::2], cohorts[1::2], strict=False) if len(a)]
    again = sum(bool(np.isin(a[0], b)) for a, b in pairs)
    return {
        "somebody takes part more or less often than the rate says": min(
            1.0, plan.num_clients * _binomial(int(unlike), len(cohorts), q)
        ),
        "cohorts of successive rounds are not independent": _binomial(again, len(pairs), q),
    }


def _binomial(count: int, trials: int, chance: float) -> float:
    return float(stats.binomtest(count, trials, chance).pvalue) if trials else 1.0
