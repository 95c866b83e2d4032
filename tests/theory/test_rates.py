from __future__ import annotations

import math

import pytest

from dpfedls import theory
from problems import CASES, PROBLEM, changed


@pytest.mark.parametrize("case", CASES)
def test_theorem_3_is_what_its_rounds_give(case):
    """With T of Theorem 3 and like clients the total is the stated order, as N grows."""
    ratios = []
    for clients in (10**6, 10**7, 10**8):
        budget = theory.settle(4.0, clients**-1.1, clients=clients, cohort=400, lambda_=0.5)
        problem = changed(
            clients=clients,
            cohort=400,
            rounds=budget.rounds,
            noise_multiplier=budget.noise_multiplier,
            server_rate=20.0,
            lipschitz=1.0,
            heterogeneity_g=0.0,
            local_steps=1000,
        )
        bound = theory.convergence(problem, case)
        assert bound.holds
        order = theory.utility(problem, case, epsilon=4.0, delta=clients**-1.1)
        log = math.log(clients) if case == "strongly-convex" else 1.0
        ratios.append(bound.total / (order * log))
    root = math.sqrt(theory.round_constant(0.5))  # √C_0 multiplies the orders with a root
    constant = root**2 if case == "strongly-convex" else root
    assert all(constant <= ratio <= 12 * constant for ratio in ratios)
    assert max(ratios) / min(ratios) < 1.5


def test_the_logarithm_of_theorem_3_does_not_depend_on_the_cohort():
    """Table 1 prints log S; T/H_σ depends on N alone, so the factor is of order log N."""
    reached = []
    for cohort in (100, 10_000):
        budget = theory.settle(4.0, 1e-8, clients=10**7, cohort=cohort, lambda_=0.5)
        problem = changed(
            clients=10**7,
            cohort=cohort,
            rounds=budget.rounds,
            noise_multiplier=budget.noise_multiplier,
            server_rate=math.sqrt(cohort),
            lipschitz=1.0,
            heterogeneity_g=0.0,
        )
        bound = theory.convergence(problem, "strongly-convex")
        reached.append(bound.step * problem.smoothed_convexity * 5 * problem.rounds)
    assert reached[0] == pytest.approx(reached[1], rel=1e-3)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("accuracy", [1e-2, 1e-4])
def test_the_rounds_of_corollary_1_reach_the_gap(case, accuracy):
    problem = changed(server_rate=10.0, cohort=100)
    terms = theory.communication(problem, case, accuracy)
    assert set(terms) == {"init", "variance", "privacy", "sampling", "drift"}
    order = sum(terms.values())
    logs = math.log(order) if case == "strongly-convex" else 1.0
    enough = changed(problem, rounds=math.ceil(400 * order * logs))
    assert theory.convergence(enough, case).total <= accuracy
    # A rate that were too small by a power of ϵ would not show above; too large shows here.
    few = changed(problem, rounds=max(1, int(order / 100)))
    assert theory.convergence(few, case).total > accuracy


def test_the_parts_of_corollary_1_scale_with_the_gap_as_stated():
    powers = {"init": 1, "variance": 2, "privacy": 2, "sampling": 2, "drift": 1.5}
    convex = {"init": 0, "variance": 1, "privacy": 1, "sampling": 1, "drift": 0.5}
    for case in CASES:
        coarse, fine = (theory.communication(PROBLEM, case, a) for a in (1e-2, 1e-4))
        for name, power in (convex if case == "strongly-convex" else powers).items():
            assert fine[name] / coarse[name] == pytest.approx(100.0**power)
