from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from scipy import stats

from dpfedls import InputError
from dpfedls.auditing.canary import cosines, judge_cosines, random_directions
from dpfedls.auditing.recipe import audit
from dpfedls.auditing.recipe import canary_run as run_with_canaries
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.server import gaussian_release
from dpfedls.tasks.task import make_task


def canary_run(recipe, count=None):
    recipe = recipe.resolved()
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    return run_with_canaries(recipe, task, recipe.denoiser, count)


def synthetic(*settings):
    # What is learned is to the canaries another noise; a small learning rate keeps it small.
    base = ["plan.num_clients=200", "plan.rounds=10", "local.learning_rate=0.001"]
    return recipes.read("synthetic", [*base, *settings])


def test_directions_nobody_sent_have_the_known_law():
    """False alarm 1e-4: a Kolmogorov–Smirnov test of 2,000 cosines against N(0, 1/d)."""
    moved = torch.zeros(260, dtype=torch.float64)
    moved[:3] = torch.tensor([5.0, 1.0, -2.0])  # any vector will do, however far from round
    found = cosines(random_directions(2000, 260, 0).double(), moved)
    assert stats.kstest(found * np.sqrt(260), "norm").pvalue > 1e-4


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
def test_the_lower_bound_holds_and_is_near(mu):
    """1,000 fits at confidence 99 %; false alarm 1e-6 if it fails in exactly 1 % of them."""
    rng, over = np.random.default_rng(0), 0
    for _ in range(1000):
        found = judge_cosines((mu + rng.normal(size=100)) / np.sqrt(500), 500, 1e-3)
        over += found.mu_lower > mu
    assert over <= stats.binom(1000, 0.01).isf(1e-6)
    many = judge_cosines((mu + rng.normal(size=10_000)) / np.sqrt(500), 500, 1e-3)
    assert mu - 0.1 < many.mu_lower
    assert many.epsilon_lower <= many.epsilon


def test_one_run_stays_within_the_claim_and_sees_more_where_there_is_less_noise():
    """The seed is fixed; over seeds, the first two assertions fail in at most 1 % each."""
    quiet, loud = (canary_run(synthetic(f"plan.noise_multiplier={z}"), 40)[0] for z in (0.2, 5.0))
    claimed = synthetic("plan.noise_multiplier=0.2").plan.epsilon()
    assert 0.5 < quiet.epsilon_lower <= claimed
    assert loud.epsilon_lower <= synthetic("plan.noise_multiplier=5.0").plan.epsilon()
    assert loud.epsilon < quiet.epsilon


def test_noise_that_is_all_but_missing_is_caught_by_the_canaries(monkeypatch):
    def faint(total, plan, norm, t, noise, layout):
        less = msgspec.structs.replace(plan, noise_multiplier=plan.noise * 0.01)
        return gaussian_release(total, less, norm, t, noise, layout)

    recipe = synthetic("plan.noise_multiplier=4.0")
    assert audit(recipe, trials=60, rounds=2, canaries=40)["consistent"]
    monkeypatch.setattr("dpfedls.server.gaussian_release", faint)
    problems = audit(recipe, trials=60, rounds=2, canaries=40)["problems"]
    assert any("they show ε" in problem for problem in problems), problems


def test_the_run_is_repeatable_and_canaries_can_be_left_out():
    recipe = synthetic("plan.noise_multiplier=1.0")
    assert canary_run(recipe) == canary_run(recipe)
    assert canary_run(recipe)[0].canaries == 65  # a quarter of the dimensions
    assert canary_run(recipe, 0) == []


@pytest.mark.parametrize("count", [-1, 9, 201])
def test_counts_that_make_no_sense_are_refused(count):
    with pytest.raises(InputError, match="canaries must be"):
        canary_run(synthetic("plan.noise_multiplier=1.0"), count)
