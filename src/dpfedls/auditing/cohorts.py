"""Whether cohorts are as the plan claims; amplification by sampling rests on it.

Tested are the people who trained, not whom a sampler would choose if it were asked.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from dpfedls.sampling import FixedSizeSampling, Indices, Sampler

FALSE_ALARMS = 1e-4  # of one call, all of its tests together
_PEOPLE = 400  # of whom all pairs are looked at


def cohort_problems(sampler: Sampler, num_clients: int, cohorts: list[Indices]) -> list[str]:
    """What is wrong with these cohorts, one a round."""
    if any(len(np.unique(c)) != len(c) for c in cohorts):
        return ["somebody trained twice in a round"]
    if any(len(c) and (c.min() < 0 or c.max() >= num_clients) for c in cohorts):
        return ["somebody trained who is not in the population"]
    there = np.zeros((len(cohorts), num_clients), dtype=np.float32)
    for t, cohort in enumerate(cohorts):
        there[t, cohort] = 1
    rate = sampler.sampling_rate(num_clients)
    tests = {**_sizes(sampler, num_clients, there), **_people(there, rate), **_pairs(there, rate)}
    return [text for text, p in tests.items() if not p >= FALSE_ALARMS / len(tests)]


def _sizes(sampler: Sampler, n: int, there: np.ndarray) -> dict[str, float]:
    """Constant, or binomial in mean and in spread."""
    sizes, q = there.sum(axis=1).astype(int), sampler.sampling_rate(n)
    if isinstance(sampler, FixedSizeSampling):
        return {"cohorts are not of the size claimed": float((sizes == sampler.cohort).all())}
    centre, width = n * q, 0.67 * np.sqrt(n * q * (1 - q))
    near = np.arange(n + 1)
    near = near[np.abs(near - centre) <= width + 1e-9]
    chance = min(1.0, float(stats.binom.pmf(near, n, q).sum()))
    return {
        "cohorts are not as large, on average, as the rate says": _binomial(
            int(sizes.sum()), n * len(sizes), q
        ),
        "cohort sizes do not vary as those of independent choices do": _binomial(
            int(np.isin(sizes, near).sum()), len(sizes), chance
        ),
    }


def _people(there: np.ndarray, rate: float) -> dict[str, float]:
    rounds, n = there.shape
    counts = there.sum(axis=0)
    return {
        "somebody takes part more or less often than the rate says": min(
            1.0, n * float(_binomials(counts, rounds, rate).min())
        )
    }


def _pairs(there: np.ndarray, rate: float) -> dict[str, float]:
    """Any two rounds, and all rounds at a distance: who was there tells nothing of who will be.

    Of any two people likewise. Given its size, a cohort meets another in a hypergeometric number.
    """
    rounds, n = there.shape
    sizes = there.sum(axis=1)
    met = there @ there.T
    first, second = np.triu_indices(rounds, 1)
    law = stats.hypergeom(n, sizes[first].astype(int), sizes[second].astype(int))
    found = met[first, second].astype(int)
    single = 2 * np.minimum(law.cdf(found), law.sf(found - 1))
    lags = second - first
    surplus = np.bincount(lags, found - law.mean(), rounds)[1:]
    variance = np.bincount(lags, law.var(), rounds)[1:]
    enough = variance > 25  # else a sum is not normal
    z = np.abs(surplus[enough]) / np.sqrt(variance[enough])
    z = float(z.max(initial=0.0)) * 0.95  # a twentieth for how far the sum is from normal
    people = there[:, :_PEOPLE]
    together = (people.T @ people)[np.triu_indices(people.shape[1], 1)]
    chance = rate * (sizes.mean() - 1) / (n - 1) if sizes.std() == 0 and n > 1 else rate**2
    tests = {
        "cohorts of two rounds are too much alike, or too little": min(
            1.0, len(single) * float(single.min(initial=1.0))
        ),
        "cohorts of different rounds are not independent": min(
            1.0, max(1, int(enough.sum())) * 2 * float(stats.norm.sf(z))
        ),
    }
    if len(together) and 0 < chance < 1:
        tests["two people take part together more or less often than they should"] = min(
            1.0, len(together) * float(_binomials(together, rounds, chance).min())
        )
    return tests


def _binomials(counts: np.ndarray, trials: int, chance: float) -> np.ndarray:
    law = stats.binom(trials, min(chance, 1.0))
    values, places = np.unique(counts.astype(int), return_inverse=True)
    return (2 * np.minimum(law.cdf(values), law.sf(values - 1)))[places]


def _binomial(count: int, trials: int, chance: float) -> float:
    return float(stats.binomtest(count, trials, chance).pvalue) if trials else 1.0
