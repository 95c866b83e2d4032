"""Rényi divergence of a noisy sum over a cohort of fixed size (Wang, Balle, Kasiviswanathan 2019).

Their Theorem 27 needs the forward differences Σ_k (-1)^(n-k)·C(n, k)·e^(k(k-1)/(2s²)), with s =
noise ÷ sensitivity. Taken as differences they lose all digits once s is large. For even n each is
the moment E|e^w - 1|^n with w ~ N(-1/(2s²), 1/s²), an integral of something positive, and so it is
computed here: relative errors stay below 1e-10 at any noise, and a margin covers them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from dpfedls.privacy.accounting.gaussian import Floats
from dpfedls.privacy.accounting.tilting import log_sum

MARGIN = 1e-9  # every term is raised by this share
ROUNDED = 1e-12  # and the result by this one: an exponent of 1e7 has no more digits than that
STEP = 1 / 16  # of the trapezoidal rule, whose error is below e^-100 for these integrands
BEYOND = 12.0  # standard deviations past the outermost peak: e^-72 of the integral is left out


def fixed_size_rdp(rate: float, noise_over_sensitivity: float, orders: Sequence[int]) -> Floats:
    """ρ of one round at whole orders >= 2, never too small."""
    s = noise_over_sensitivity
    if rate == 1:  # the Gaussian's own
        return np.array(orders) / (2 * s**2)
    j = np.arange(2, max(orders) + 1)
    # 2·e^((j - 1)·ρ(j)) with the Gaussian's ρ(j) = j/(2s²), or by differences where that is less.
    logs = np.log(2) + j * (j - 1) / (2 * s**2)
    last = int(min(max(orders) + 1, 8 * s**2)) // 2 * 2  # beyond it the differences are no less
    if last >= 4:
        even = log_moments(np.arange(2, last + 1, 2), s)
        some = slice(1, last - 1)  # j = 3, …, last
        between = (even[j[some] // 2 - 1] + even[(j[some] + 1) // 2 - 1]) / 2
        logs[some] = np.minimum(logs[some], np.log(4) + between)
    logs[0] = min(np.log(4) + log_expm1(np.array(1 / s**2)), logs[0])
    logs += j * np.log(rate) + np.log1p(MARGIN)
    values = []
    for order in orders:
        k = j[: order - 1]
        chosen = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        values.append(log_one_plus(log_sum(logs[: order - 1] + chosen)) / (order - 1))
    return np.array(values) * (1 + ROUNDED)


def log_moments(even: np.ndarray, s: float) -> Floats:
    """log E|e^w - 1|^n for w ~ N(-1/(2s²), 1/s²), each even n."""
    most = float(even[-1])
    ends = -np.sqrt(most) - BEYOND, most / s + np.sqrt(most) + BEYOND
    z = np.arange(*ends, STEP) + STEP / np.pi  # no point where e^w = 1
    w = z / s - 1 / (2 * s**2)
    # log|e^w - 1| = max(w, 0) + log(1 - e^-|w|): no overflow.
    size = np.maximum(w, 0.0) + np.log(-np.expm1(-np.abs(w)))
    density = -(z**2) / 2 + np.log(STEP / np.sqrt(2 * np.pi))
    return np.array([log_sum(n * size + density) for n in even])


def log_expm1(x: Floats) -> Floats:
    """log(e^x - 1) for x > 0, without overflow."""
    return x + np.log(-np.expm1(-x))


def log_one_plus(log_x: float) -> float:
    """log(1 + x), all digits for tiny x too."""
    return float(np.log1p(np.exp(log_x))) if log_x < 30 else float(np.logaddexp(0.0, log_x))
