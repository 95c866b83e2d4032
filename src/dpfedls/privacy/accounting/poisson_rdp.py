"""Rényi divergence of a noisy sum over a Poisson cohort, at whole orders (Mironov et al. 2019).

Their E[(P/Q)^α] = Σ_k C(α, k)·(1 - q)^(α-k)·q^k·e^(k(k-1)/(2s²)), with s = noise ÷ sensitivity, is
1 + something tiny once s is large, and its logarithm loses all digits. The binomial weights sum to
1, so that something is Σ_k C(α, k)·(1 - q)^(α-k)·q^k·(e^(k(k-1)/(2s²)) - 1): no term is negative,
and no digit is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, xlog1py

from dpfedls.privacy.accounting.fixed_rdp import log_expm1, log_one_plus
from dpfedls.privacy.accounting.gaussian import Floats
from dpfedls.privacy.accounting.tilting import log_sum

MARGIN = 1e-10  # every ρ is raised by this share; logarithms of C(2048, k) have errors of 1e-12


def poisson_rdp(rate: float, noise_over_sensitivity: float, orders: Sequence[int]) -> Floats:
    """ρ of one round at whole orders >= 2, never too small."""
    k = np.arange(2.0, max(orders) + 1)
    logs = k * np.log(rate) + log_expm1(k * (k - 1) / (2 * noise_over_sensitivity**2))
    values = []
    for order in orders:
        j = k[: order - 1]
        chosen = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        nobody = xlog1py(order - j, -rate)
        values.append(log_one_plus(log_sum(logs[: order - 1] + chosen + nobody)) / (order - 1))
    return np.array(values) * (1 + MARGIN)
