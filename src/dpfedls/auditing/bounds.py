"""From the noise that was seen and how far a person moves a release to a lower bound on μ.

A mechanism is μ-GDP if telling its two outputs apart is as hard as telling N(0, 1) from N(μ, 1)
(Dong, Roth, Su 2022). A person who moves a sum by S under Gaussian noise of deviation σ shows S/σ.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from dpfedls.privacy.accounting.loss_pmf import gaussian_delta


def largest_deviation(noise: np.ndarray, confidence: float) -> float:
    """An upper limit on the standard deviation of these independent normals of mean zero."""
    total = float(np.sum(noise.astype(np.float64) ** 2))
    return math.sqrt(total / float(stats.chi2.ppf(1 - confidence, noise.size)))


def scale_error_found(count: int, false_alarms: float) -> float:
    """The relative error of a standard deviation that ``count`` normals reveal with 99 %."""
    reach = stats.norm.isf(false_alarms / 2) + stats.norm.isf(1 - 0.99)
    return float(reach) / math.sqrt(2 * count)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The ε of a μ-GDP mechanism at ``delta``."""
    if math.isinf(mu):
        return math.inf
    if mu == 0 or gaussian_delta(np.array([0.0]), mu)[0] <= delta:
        return 0.0
    most = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))  # Φ(−x) ≤ exp(−x²/2)
    return cast(float, brentq(lambda e: gaussian_delta(np.array([e]), mu)[0] - delta, 0.0, most))
