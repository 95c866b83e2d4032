from __future__ import annotations

import math

import numpy as np
import pytest

from dpfedls import InputError, theory


def test_the_papers_bound_is_the_tangent_of_bayes_rule():
    small = 1e-6
    assert theory.largest_excess(small) == pytest.approx(theory.excess_probability(small, 0.0))
    for epsilon in (0.1, 1.0, 2.0, 8.0):
        for prior in (0.01, 0.3, 0.5, 0.9):
            excess = theory.largest_excess(epsilon, prior)
            assert 0 < excess <= theory.excess_probability(epsilon, 0.0)
    assert theory.largest_excess(1.0) == pytest.approx(math.tanh(0.5) / 2)
    assert theory.excess_probability(2.0, 0.0) == 0.5  # from here on it says nothing


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.3, 1e-3), (2.0, 0.1), (8.0, 1e-5)])
def test_the_largest_auc_is_the_area_above_the_trade_off_curve(epsilon, delta):
    x = np.linspace(0, 1, 2_000_001)
    steep, flat = 1 - delta - math.exp(epsilon) * x, math.exp(-epsilon) * (1 - delta - x)
    area = np.trapezoid(np.maximum(0, np.maximum(steep, flat)), x)
    assert theory.largest_auc(epsilon, delta) == pytest.approx(1 - area, abs=1e-6)


def test_bounds_at_the_ends():
    assert theory.largest_auc(0.0, 0.0) == 0.5
    assert theory.largest_auc(0.0, 1.0) == 1.0
    assert theory.largest_auc(1e6, 0.0) == pytest.approx(1.0)
    with pytest.raises(InputError, match="prior must be in"):
        theory.largest_excess(1.0, 1.0)
    with pytest.raises(InputError, match="delta must be in"):
        theory.largest_auc(1.0, 2.0)
