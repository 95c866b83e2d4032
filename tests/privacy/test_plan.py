"""The plan: checked when made, frozen, and one source for noise, sensitivity and ε."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import msgspec
import pytest

from dpfedls.errors import InputError
from dpfedls.privacy import PrivacyPlan
from dpfedls.sampling import FixedSizeSampling, PoissonSampling


def plan(**changes: Any) -> PrivacyPlan:
    fields: dict[str, Any] = {
        "sampler": PoissonSampling(rate=0.05),
        "num_clients": 500,
        "rounds": 30,
        "clip_norm": 0.3,
        "noise_multiplier": 1.0,
    }
    return PrivacyPlan(**(fields | changes))


def test_poisson_means_add_or_remove_one() -> None:
    made = plan()
    assert made.relation == "add-or-remove-one"
    assert made.sensitivity(0.3) == pytest.approx(0.3)
    assert made.expected_cohort == pytest.approx(25)
    assert made.noise_stddev(0.3) == pytest.approx(0.3)
    assert made.delta == pytest.approx(500**-1.1)
    assert made.round_event.noise_over_sensitivity == 1.0


def test_fixed_size_means_replace_one() -> None:
    made = plan(sampler=FixedSizeSampling(cohort=50))
    assert made.relation == "replace-one"
    assert made.sensitivity(0.3) == pytest.approx(0.6)
    assert made.expected_cohort == 50
    assert made.noise_stddev(0.3) == pytest.approx(0.3)
    assert made.round_event.noise_over_sensitivity == 0.5


def test_no_noise_is_not_private() -> None:
    """Also with no clipping at all, which is plain federated averaging."""
    made = plan(noise_multiplier=0.0, clip_norm=math.inf)
    assert not made.is_private
    assert made.noise_stddev(0.3) == 0.0
    assert made.epsilon() == math.inf


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 0}, "rounds must be >= 1"),
        ({"num_clients": 0}, "num_clients must be >= 1"),
        ({"clip_norm": 0.0}, "clip_norm must be > 0"),
        ({"clip_norm": -1.0}, "clip_norm must be > 0"),
        ({"clip_norm": math.nan}, "clip_norm must be > 0"),
        ({"clip_norm": math.inf}, "finite clip_norm, or noise_multiplier=0"),
        ({"clip_norm": math.inf, "noise_multiplier": None}, "finite clip_norm"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be 0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier must be 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be 0"),
        ({"delta": 0.0}, "delta must be in"),
        ({"delta": 1.0}, "delta must be in"),
        ({"delta": math.nan}, "delta must be in"),
        ({"sampler": FixedSizeSampling(cohort=501)}, "larger than the population"),
        ({"num_clients": 1}, "delta must be given"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(**changes)


def test_a_population_of_one_needs_its_delta() -> None:
    assert plan(num_clients=1, delta=0.01).delta == 0.01


@pytest.mark.parametrize("use", ["noise", "is_private", "round_event", "event"])
def test_noise_must_be_chosen_before_use(use: str) -> None:
    remedy = r"no noise yet: give noise_multiplier=… or call \.calibrated"
    with pytest.raises(InputError, match=remedy):
        getattr(plan(noise_multiplier=None), use)
    with pytest.raises(InputError, match="no noise yet"):
        plan(noise_multiplier=None).epsilon()


@pytest.mark.parametrize("sampler", [PoissonSampling(rate=0.05), FixedSizeSampling(cohort=25)])
def test_calibrated_is_a_new_plan_within_its_budget(
    sampler: PoissonSampling | FixedSizeSampling,
) -> None:
    bare = plan(sampler=sampler, noise_multiplier=None)
    made = bare.calibrated(epsilon=4.0)
    assert bare.noise_multiplier is None
    assert 3.996 < made.epsilon() <= 4.0
    assert made.epsilon(rounds=10) < made.epsilon()
    assert made.epsilon(rounds=0) == 0.0
    assert made.calibrated(epsilon=4.0) == made


def test_event_is_dp_accountings_with_our_multiplier() -> None:
    accountant = dp_accounting.pld.PLDAccountant().compose(plan().event)
    assert accountant.get_epsilon(500**-1.1) == pytest.approx(plan().epsilon(), rel=1e-3)
    fixed = plan(sampler=FixedSizeSampling(cohort=50)).event
    assert isinstance(fixed, dp_accounting.SelfComposedDpEvent)
    assert fixed.count == 30
    assert fixed.event == dp_accounting.SampledWithoutReplacementDpEvent(
        500, 50, dp_accounting.GaussianDpEvent(1.0)
    )


def test_frozen_comparable_and_stored() -> None:
    made = plan(sampler=FixedSizeSampling(cohort=50))
    with pytest.raises(AttributeError):
        made.rounds = 5  # pyright: ignore[reportAttributeAccessIssue]
    stored = msgspec.json.encode(made)
    assert msgspec.json.decode(stored, type=PrivacyPlan) == made
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(stored[:-1] + b',"nois":1}', type=PrivacyPlan)
