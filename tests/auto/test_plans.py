"""The planner: what a promise costs, and the cheapest way to keep it."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from dpfedls import AdaptiveClipping, InputError
from dpfedls.auto.choices import plan_for
from dpfedls.auto.planner import (
    ENOUGH,
    ROUNDS,
    candidates,
    choose_plan,
    little_noise,
    people_needed,
)


def test_rows_keep_the_promise_and_come_in_the_order_of_their_cost():
    rows = list(candidates(500, 1.0))
    costs = [row.client_rounds for row in rows]
    assert costs == sorted(costs)
    for row in rows[:: len(rows) // 4]:
        assert 0.999 < row.plan.epsilon() <= 1.0


def test_waste_is_noise_against_one_release_of_everybodys():
    """N = 500, cohort 25, 100 rounds: 1.20 at ε = 1, 1.87 at ε = 4 (computed by hand before)."""
    for epsilon, waste in ((1.0, 1.20), (4.0, 1.87)):
        rows = candidates(500, epsilon, cohort_at_most=25, rounds_at_most=100)
        found = [row for row in rows if row.plan.expected_cohort == pytest.approx(25)]
        assert found[0].waste == pytest.approx(waste, abs=0.006)


@pytest.mark.parametrize(("people", "epsilon"), [(200, 0.5), (500, 1.0), (1000, 2.0), (200, 8.0)])
def test_nothing_cheaper_would_have_been_good_enough(people, epsilon):
    rows = list(candidates(people, epsilon))
    row = choose_plan(iter(rows))
    assert row.enough()
    assert not any(other.enough() for other in rows[: rows.index(row)])


def test_many_people_do_not_all_have_to_work():
    row = choose_plan(candidates(100_000, 2.0))
    assert row.client_rounds <= 400_000  # four times each
    assert row.waste > ENOUGH  # and nobody notices, since the noise is spread over so many


@pytest.mark.parametrize(("people", "epsilon"), [(1000, 8.0), (5000, 4.0), (20_000, 2.0)])
def test_little_noise_calls_for_rounds_and_not_for_more_people(people, epsilon):
    """Of 5,000 people at ε = 4, 500 in 100 rounds lose a point on MNIST to 500 in 400 rounds."""
    row = choose_plan(candidates(people, epsilon))
    assert row.plan.rounds == max(ROUNDS)
    limited = choose_plan(candidates(people, epsilon, rounds_at_most=100))
    assert limited.plan.rounds == 100


@pytest.mark.parametrize("people", [300, 500, 2000, 5000, 10_000])
def test_more_epsilon_means_no_fewer_rounds_up_to_the_most(people):
    """500 people at ε = 8 had 100 rounds and at ε = 4 200: a regression lost half of its loss."""
    rounds = [choose_plan(candidates(people, e)).plan.rounds for e in (0.5, 1.0, 2.0, 4.0, 8.0)]
    assert rounds == sorted(rounds)
    assert rounds[-1] == max(ROUNDS)


def test_where_rounds_do_not_help_the_cheapest_plan_with_little_waste_is_taken():
    (many, why), (few, _) = (plan_for(500, 8.0, rounds_help=help_) for help_ in (True, False))
    assert "with rounds enough" in why["plan.rounds"]
    assert "rounds enough" not in plan_for(500, 1.0)[1]["plan.rounds"]
    assert (many.rounds, many.expected_cohort) == (400, 100)
    assert (few.rounds, few.expected_cohort) == (100, 200)
    assert few.expected_cohort * few.rounds < many.expected_cohort * many.rounds
    assert few.epsilon() <= 8.0


def test_more_epsilon_never_means_fewer_people_a_round_where_noise_is_little():
    """60,000 people of one image: 500 a round at ε = 1 led to 95.9 %, 200 at ε = 2 to 94.6 %."""
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        assert choose_plan(candidates(60_000, epsilon)).plan.expected_cohort == 1000


def test_little_noise_clips_fewer_updates_for_the_same_promise():
    """Whose only image is recognised sends next to nothing: the median falls, the norm with it."""
    for people, epsilon, quantile in ((500, 1.0, 0.5), (5000, 8.0, 0.9)):
        plan, why = plan_for(people, epsilon)
        assert little_noise(plan) == (quantile > 0.5)
        assert plan.clipping.quantile == quantile
        median = replace(plan, clip_norm=AdaptiveClipping())
        assert plan.noise_stddev(0.3) == median.noise_stddev(0.3)
        assert plan.round_event == median.round_event
        assert ("90%" in why["plan.clip_norm"]) == (quantile > 0.5)


def test_limits_are_kept_and_the_least_waste_is_taken_where_none_is_enough():
    rows = list(candidates(500, 8.0, cohort_at_most=20, rounds_at_most=7))
    assert [row.plan.rounds for row in rows] == [7]
    assert max(row.plan.expected_cohort for row in rows) <= 20 + 1e-9
    assert choose_plan(iter(rows)) == min(rows, key=lambda row: row.waste)
    with pytest.raises(InputError, match="cohort_at_most"):
        list(candidates(500, 1.0, cohort_at_most=0))


def test_a_wish_that_cannot_be_met_is_told_with_what_it_would_take():
    row = choose_plan(candidates(40, 0.1))
    needed = people_needed(0.1, row)
    assert needed > 40
    plan_for(needed, 0.1)
    with pytest.raises(InputError, match=r"40 people at ε = 0\.1"):
        plan_for(40, 0.1)


def test_what_a_wish_would_take_depends_on_the_delta_that_is_given():
    """A smaller δ takes more people; a number of so many digits would not be known so well."""
    row = choose_plan(candidates(40, 0.1, 1e-12))
    usual = people_needed(0.1, choose_plan(candidates(40, 0.1)))
    needed = people_needed(0.1, row, 1e-12)
    assert needed > 1.5 * usual
    assert needed == float(f"{needed:.2g}")
    with pytest.raises(InputError, match=f"about {needed} people"):
        plan_for(40, 0.1, 1e-12)
    with pytest.raises(InputError, match="more than a million people"):
        plan_for(300, 1e-6)
    with pytest.raises(InputError, match=r"40 people at ε = 0\.1"):
        plan_for(40, 0.1, 0.02)  # a δ that more people could not be promised


def test_a_plan_comes_with_its_reasons():
    plan, why = plan_for(300, 2.0, delta=1e-4)
    assert plan.rounds in ROUNDS
    assert plan.target_delta == 1e-4
    assert f"{plan.rounds}: with {plan.expected_cohort:g} people" in why["plan.rounds"]
    assert math.isclose(plan.epsilon(), 2.0, rel_tol=2e-3)
