"""From scores with and without a person to a lower bound on μ, with stated confidence.

A mechanism is μ-GDP if telling the two apart is as hard as telling N(0, 1) from N(μ, 1) (Dong,
Roth, Su 2022). A test that does better, by more than chance explains, shows that μ is larger.
"""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtri

from dpfedls.privacy.accounting.loss_pmf import gaussian_delta

Scores: TypeAlias = NDArray[np.float64]

_THRESHOLDS = 200  # candidates; choosing among them costs nothing, since others' trials judge


def threshold_bound(present: Scores, absent: Scores, confidence: float) -> float:
    """A lower bound on μ from one threshold test; assumes nothing about the scores.

    The first half of the trials chooses the threshold, the second half judges it. Both error
    rates get a Clopper–Pearson upper limit, each failing with half of 1 − confidence; at those
    limits μ ≥ Φ⁻¹(1 − false positives) − Φ⁻¹(false negatives).
    """
    half, fails = len(present) // 2, (1 - confidence) / 2
    pooled = np.concatenate([present[:half], absent[:half]])
    candidates = np.quantile(pooled, np.linspace(0, 1, _THRESHOLDS))
    chosen = np.argmax(_separation(present[:half], absent[:half], candidates, fails))
    found = _separation(present[half:], absent[half:], candidates[chosen : chosen + 1], fails)
    return max(0.0, float(found[0]))


def gaussian_bound(present: Scores, absent: Scores, confidence: float) -> float:
    """A lower bound on μ for normal scores: least likely shift ÷ largest likely noise.

    Trial k of both samples should carry the same noise, since then the shift is known almost
    exactly; independent noise is allowed and only widens the limit. Student's t bounds the shift,
    χ² the standard deviation of ``absent``, each failing with half of 1 − confidence.
    """
    fails, free = (1 - confidence) / 2, len(absent) - 1
    shifts = present - absent
    spread = float(shifts.std(ddof=1)) / math.sqrt(len(shifts))
    shift = float(shifts.mean()) - float(stats.t.ppf(1 - fails, free)) * spread
    noise = float(absent.std(ddof=1)) * math.sqrt(free / float(stats.chi2.ppf(fails, free)))
    if shift <= 0:
        return 0.0
    return math.inf if noise == 0 else shift / noise


def gdp_epsilon(mu: float, delta: float) -> float:
    """The ε of a μ-GDP mechanism at ``delta``."""
    if math.isinf(mu):
        return math.inf
    if mu == 0 or gaussian_delta(np.array([0.0]), mu)[0] <= delta:
        return 0.0
    most = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))  # Φ(−x) ≤ exp(−x²/2)
    return cast(float, brentq(lambda e: gaussian_delta(np.array([e]), mu)[0] - delta, 0.0, most))


def _separation(present: Scores, absent: Scores, thresholds: Scores, fails: float) -> Scores:
    """Φ⁻¹(1 − α) − Φ⁻¹(β) at the upper limits of both error rates, for each threshold."""
    false_alarms = (absent[:, None] > thresholds).sum(axis=0)
    misses = (present[:, None] <= thresholds).sum(axis=0)
    return -ndtri(_upper(false_alarms, len(absent), fails)) - ndtri(
        _upper(misses, len(present), fails)
    )


def _upper(count: Scores, trials: int, fails: float) -> Scores:
    """Clopper–Pearson: the probability that makes so few of so many as unlikely as ``fails``."""
    limit = stats.beta.ppf(1 - fails, count + 1, np.maximum(trials - count, 1))
    return np.where(count == trials, 1.0, limit)
