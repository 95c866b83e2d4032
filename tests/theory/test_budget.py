from __future__ import annotations

import math

import numpy as np
import pytest

from dpfedls import InputError, theory
from dpfedls.privacy.accounting.closed_form import closed_form_noise
from dpfedls.sampling import FixedSizeSampling


def test_the_round_constant_is_least_where_its_docstring_says():
    least = min(theory.round_constant(x) for x in np.arange(1, 1000) / 1000)
    assert theory.round_constant(2 - math.sqrt(2)) == pytest.approx(14 * (3 + 2 * math.sqrt(2)))
    assert least == pytest.approx(theory.round_constant(2 - math.sqrt(2)), rel=1e-5)


@pytest.mark.parametrize("epsilon", [6.0, 9.0])
def test_noise_of_theorem_1_is_that_of_the_privacy_package(epsilon):
    delta = 1000**-1.1
    budget = theory.settle(epsilon, delta, clients=1000, cohort=50, rounds=30)
    other = closed_form_noise(
        epsilon, sampler=FixedSizeSampling(cohort=50), num_clients=1000, rounds=30, delta=delta
    )
    assert budget.noise_multiplier == pytest.approx(other.noise_multiplier, rel=1e-9)
    assert (budget.lambda_, budget.alpha) == pytest.approx((other.lambda_, other.alpha))
    assert all(c.holds for c in budget.conditions if "log(1/δ)" not in c.condition)


def test_rounds_and_noise_undo_each_other():
    setting = {"clients": 10**5, "cohort": 200, "lambda_": 0.2}
    by_rounds = theory.settle(4.0, 1e-6, rounds=20_000, **setting)
    by_noise = theory.settle(4.0, 1e-6, noise_multiplier=by_rounds.noise_multiplier, **setting)
    assert by_noise.rounds == 20_000
    both = theory.settle(4.0, 1e-6, lipschitz=2.0, clients=10**5, cohort=200)
    assert all(c.holds for c in both.conditions)
    expected = (4e5 / 2) ** 2 / (theory.round_constant(both.lambda_) * 200 * math.log(1e6))
    assert both.rounds == math.floor(expected)
    assert both.noise_multiplier**2 <= 200 / 2.0**2  # log(1/δ) ≥ ε turns Eq. (4) into S/L²


def test_a_budget_outside_theorem_1_is_answered_and_marked():
    budget = theory.settle(1.0, 1e-6, clients=10**5, cohort=1000, noise_multiplier=3.0)
    assert not all(c.holds for c in budget.conditions)
    quiet = theory.settle(1.0, 1e-6, clients=10**6, cohort=10, rounds=3)
    assert not quiet.conditions[0].holds  # ν₁² < 8/3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": math.inf}, "epsilon must be a finite"),
        ({"delta": 1.0}, "delta must be in"),
        ({"lambda_": 1.0}, "lambda must be in"),
        ({"rounds": 3, "noise_multiplier": 1.0}, "one too many"),
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0"),
        ({"noise_multiplier": 0.01}, "does not pay for one round"),
    ],
)
def test_a_wrong_budget_is_refused(fields, said):
    fields = {"epsilon": 1.0, "delta": 1e-5, "clients": 100, "cohort": 50} | fields
    with pytest.raises(InputError, match=said):
        theory.settle(fields.pop("epsilon"), fields.pop("delta"), **fields)
