from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import typer
from scipy import stats
from typer.testing import CliRunner

from dpfedls import FixedSizeSampling, InputError, PoissonSampling
from dpfedls.audit.bounds import gaussian_bound, gdp_epsilon, threshold_bound
from dpfedls.audit.cohorts import audit_cohorts
from dpfedls.audit.gdp import audit_round, run_epsilon
from dpfedls.audit.replay import audit_replay
from dpfedls.commands.audit import audit
from dpfedls.privacy import RoundEvent, epsilon
from dpfedls.randomness import SeededStreams, SystemStreams
from federations import plan

AUDITS = """
import torch
from dpfedls import FixedSizeSampling, PoissonSampling, PrivacyPlan
from dpfedls.audit.gdp import audit_round
from dpfedls.randomness import SeededStreams

torch.set_num_threads(1)
samplers, kept = [PoissonSampling(rate=0.4), FixedSizeSampling(cohort=8)], 0
for seed in range(200):
    noise = (0.5, 1.0, 4.0)[seed % 3]
    plan = PrivacyPlan(sampler=samplers[seed % 2], num_clients=20, rounds=4, clip_norm=0.5,
                       noise_multiplier=noise)
    kept += audit_round(plan, SeededStreams(seed), trials=100).consistent
print(kept)
"""
SAMPLERS = [PoissonSampling(rate=0.4), FixedSizeSampling(cohort=8)]


@pytest.mark.parametrize("bound", [threshold_bound, gaussian_bound])
@pytest.mark.parametrize("mu", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("paired", [True, False])
def test_bounds_hold_as_often_as_they_say(bound, mu, paired):
    """500 draws at confidence 90 %; false alarm 1e-6 if the bound fails in exactly 10 % of them."""
    rng, over = np.random.default_rng(3), 0
    for _ in range(500):
        absent = rng.normal(size=200)
        present = mu + (absent if paired else rng.normal(size=200))
        over += bound(present, absent, 0.9) > mu
    assert over <= stats.binom(500, 0.1).isf(1e-6)


def test_bounds_come_close_to_what_is_true():
    rng = np.random.default_rng(0)
    absent = rng.normal(size=20_000)
    assert 0.93 < threshold_bound(absent + 1.0, absent, 0.99) < 1.0
    assert 0.97 < gaussian_bound(absent + 1.0, absent, 0.99) < 1.0


def test_scores_without_noise_have_no_finite_mu():
    assert gaussian_bound(np.ones(100), np.zeros(100), 0.99) == math.inf
    assert gaussian_bound(np.zeros(100), np.ones(100), 0.99) == 0.0


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 10.0])
def test_epsilon_of_gaussian_dp_is_the_accountants(mu):
    event = RoundEvent(sampler=PoissonSampling(rate=1.0), num_clients=9, noise_multiplier=1 / mu)
    assert gdp_epsilon(mu, 1e-4) == pytest.approx(epsilon([(event, 1)], 1e-4), rel=1e-3, abs=1e-5)
    assert gdp_epsilon(0.0, 1e-4) == gdp_epsilon(1e-6, 1e-4) == 0.0
    assert gdp_epsilon(math.inf, 1e-4) == math.inf


def test_on_correct_code_the_bound_stays_below_the_claim():
    """200 audits of both samplings at confidence 99 %; 97 % must pass.

    False alarm: seven or more failures at 1 % each have probability 0.4 %; at the 0.25 % at which
    the paired fit can fail, 1e-6. In a process of its own, without the run-time checks of shapes
    that these tests have on: they take five times as long as a round.
    """
    done = subprocess.run([sys.executable, "-c", AUDITS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 194


@pytest.mark.parametrize(("sampler", "noise"), [(SAMPLERS[0], 0.3), (SAMPLERS[1], 5.0)])
def test_the_bound_is_near_the_claim_so_it_would_notice(sampler, noise):
    """False alarms: 1 % above the claim, 1e-4 below 0.8 of it."""
    promised = plan(sampler=sampler, noise_multiplier=noise)
    found = audit_round(promised, SeededStreams(1), trials=600)
    assert 0.8 * found.mu_claimed < found.mu_lower <= found.mu_claimed
    assert found.mu_claimed == promised.sensitivity(1.0) / promised.noise_stddev(1.0)
    assert run_epsilon(promised, found.mu_claimed) == pytest.approx(promised.epsilon(), rel=1e-9)
    assert run_epsilon(promised, 0.0) == 0.0
    assert run_epsilon(promised, math.inf) == math.inf


def test_deployed_noise_is_audited_without_a_seed():
    """False alarm: 1e-5; the noise is fresh each time, so no seed can be fixed."""
    found = audit_round(plan(), SystemStreams(), trials=400, confidence=0.99999)
    assert 0.3 < found.mu_lower <= found.mu_claimed


@pytest.mark.parametrize(
    "sampler",
    [
        *SAMPLERS,
        PoissonSampling(rate=1.0),
        FixedSizeSampling(cohort=20),
        PoissonSampling(rate=0.01),
    ],
)
def test_correct_cohorts_and_rounds_pass(sampler):
    """40 audits at a false-alarm rate of 0.1 %: two or more alarms have probability 8e-4."""
    promised = plan(sampler=sampler, delta=1e-2)
    alarms = [bool(audit_cohorts(promised, SeededStreams(s), 200).problems) for s in range(40)]
    assert sum(alarms) <= 1
    assert audit_replay(promised) == []


@pytest.mark.parametrize(
    ("cohort", "problem"),
    [
        (lambda n, rng: np.array([1, 1, 2]), "twice"),
        (lambda n, rng: np.array([n]), "not in the population"),
        (lambda n, rng: np.flatnonzero(rng.random(n) < 0.3), "on average"),
        (lambda n, rng: np.arange(rng.binomial(n, 0.4)), "more or less often"),
        (lambda n, rng: np.sort(rng.choice(n, 8, replace=False)), "do not vary"),
        (lambda n, rng: np.arange(0, n, 2)[: int(n * 0.4)], "not independent"),
    ],
)
def test_wrong_cohorts_are_named(monkeypatch, cohort, problem):
    """Each is caught with probability 1 − 1e-6 or more."""
    monkeypatch.setattr(PoissonSampling, "sample", lambda self, n, rng: cohort(n, rng))
    problems = audit_cohorts(plan(), SeededStreams(0)).problems
    assert any(problem in text for text in problems), problems


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(InputError, match="nothing to audit"):
        audit_round(plan(noise_multiplier=0), SeededStreams(0))
    with pytest.raises(InputError, match="trials must be at least 100, got 9"):
        audit_round(plan(), SeededStreams(0), trials=9)


def invoke(*arguments):
    app = typer.Typer()
    app.command()(audit)
    return CliRunner().invoke(app, ["synthetic", "--set", "plan.num_clients=60", *arguments])


def test_the_command_answers_as_the_contract_says():
    result = invoke("--trials", "200", "--json", "--seed", "1", "--canaries", "20")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["consistent"] is True
    assert found["problems"] == []
    assert 0 < found["mu_lower"] <= found["mu_claimed"]
    assert 0 < found["epsilon_lower"] <= found["epsilon_claimed"] <= 2.0
    assert found["confidence"] == 0.99
    assert [view["canaries"] for view in found["canary"]] == [20, 20]


def test_the_command_says_that_passing_proves_nothing_and_fails_loudly(monkeypatch):
    assert "Passing proves nothing" in invoke("--trials", "100", "--canaries", "0").stdout
    monkeypatch.setattr("dpfedls.clipping.clip", lambda updates, norm: updates)
    result = invoke("--trials", "100", "--canaries", "0")
    assert result.exit_code == 1
    assert "NOT CONSISTENT" in result.stdout
    assert "problem: one round shows" in result.stdout
