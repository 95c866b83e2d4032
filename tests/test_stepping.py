"""The server rate: what it leaves in a weight, whatever the clip norm does."""

from __future__ import annotations

import math

import msgspec
import pytest

from dpfedls import AdaptiveClipping, InputError, PoissonSampling, PrivacyPlan
from dpfedls.stepping import NoiseRate, step_length


def plan(noise: float = 3.0, rounds: int = 7) -> PrivacyPlan:
    return PrivacyPlan(
        sampler=PoissonSampling(rate=0.1),
        num_clients=80,
        rounds=rounds,
        clip_norm=AdaptiveClipping(),
        noise_multiplier=noise,
        delta=1e-3,
    )


@pytest.mark.parametrize("schedule", ["constant", "root", "linear"])
def test_the_noise_that_a_weight_gathers_is_the_one_asked_for_whatever_the_norm_does(schedule):
    promised, norms = plan(), [1.0, 30.0, 0.02, 5.0, 5.0, 0.1, 2.0]
    rate = NoiseRate(noise=0.05, at_most=1e9)
    steps = [step_length(rate, schedule, promised, c, t) for t, c in enumerate(norms)]
    each = [
        s * promised.noise_stddev(c) / promised.expected_cohort
        for s, c in zip(steps, norms, strict=True)
    ]
    assert math.sqrt(sum(x * x for x in each)) == pytest.approx(0.05)


@pytest.mark.parametrize(("schedule", "power"), [("constant", 0), ("root", 0.5), ("linear", 1)])
def test_a_schedule_is_a_power_of_the_rounds_that_are_left(schedule, power):
    steps = [step_length(0.3, schedule, plan(), 1.0, t) for t in range(7)]
    assert steps == pytest.approx([0.3 * ((7 - t) / 7) ** power for t in range(7)])


def test_little_noise_does_not_lengthen_a_step_beyond_the_limit():
    rate = NoiseRate(noise=0.05, at_most=0.75)
    assert step_length(rate, "constant", plan(1e-3), 1.0, 3) == 0.75
    assert step_length(rate, "linear", plan(0.0), 1.0, 0) == 0.75


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_with_which_no_step_can_be_taken_is_refused(rate):
    with pytest.raises((InputError, msgspec.ValidationError), match="server_rate"):
        NoiseRate(noise=rate)
