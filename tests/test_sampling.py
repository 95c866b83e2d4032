from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfedls import FixedSizeSampling, InputError, PoissonSampling


@given(rate=st.floats(1e-4, 1.0), num_clients=st.integers(1, 5000), seed=st.integers(0, 2**32 - 1))
def test_poisson_cohort_is_sorted_distinct_and_in_range(rate, num_clients, seed):
    cohort = PoissonSampling(rate=rate).sample(num_clients, np.random.default_rng(seed))
    assert (np.diff(cohort) > 0).all()
    assert len(cohort) == 0 or (cohort[0] >= 0 and cohort[-1] < num_clients)


def test_poisson_takes_each_client_independently_with_the_rate():
    """False alarms: 1e-4 by binomial tests of 40 clients together, 1e-4 for the size."""
    sampler, rng, draws = PoissonSampling(rate=0.3), np.random.default_rng(1), 4000
    taken = np.zeros((draws, 40), dtype=bool)
    for row in taken:
        row[sampler.sample(40, rng)] = True
    worst = min(stats.binomtest(int(c), draws, 0.3).pvalue for c in taken.sum(axis=0))
    assert worst > 1e-4 / 40
    # Independence: the cohort size is binomial, so its variance is 40·0.3·0.7.
    statistic = taken.sum(axis=1).var(ddof=1) * (draws - 1) / (40 * 0.3 * 0.7)
    assert stats.chi2(draws - 1).interval(1 - 1e-4)[0] < statistic
    assert statistic < stats.chi2(draws - 1).interval(1 - 1e-4)[1]


def test_poisson_may_take_nobody():
    rng = np.random.default_rng(0)
    assert min(len(PoissonSampling(rate=0.01).sample(10, rng)) for _ in range(50)) == 0


def test_fixed_size_takes_every_client_equally_often_and_never_twice():
    """False alarm: 1e-4 by a chi-squared test over 30 clients."""
    sampler, rng, counts = FixedSizeSampling(cohort=7), np.random.default_rng(2), np.zeros(30)
    for _ in range(3000):
        cohort = sampler.sample(30, rng)
        assert len(np.unique(cohort)) == 7
        counts[cohort] += 1
    # Without replacement the counts are less spread than multinomial: scale by (1 - q)(n/(n-1)).
    statistic = ((counts - 700) ** 2 / (700 * (1 - 7 / 30) * 30 / 29)).sum()
    assert statistic < stats.chi2(29).isf(1e-4)


@pytest.mark.parametrize("rate", [1e-18, 1e-30, 1e-300])
def test_the_smallest_rates_take_nobody_and_end(rate):
    assert len(PoissonSampling(rate=rate).sample(1000, np.random.default_rng(0))) == 0


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, float("nan")])
def test_rate_outside_its_range_is_refused(rate):
    with pytest.raises(InputError, match=r"sampler\.rate must be in \(0, 1\]"):
        PoissonSampling(rate=rate)


def test_cohort_larger_than_the_population_is_refused():
    with pytest.raises(InputError, match="larger than the population of 5"):
        FixedSizeSampling(cohort=6).sample(5, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"sampler\.cohort must be > 0"):
        FixedSizeSampling(cohort=0)


def test_the_relation_and_the_sensitivity_follow_from_the_sampler():
    poisson, fixed = PoissonSampling(rate=0.5), FixedSizeSampling(cohort=5)
    assert (poisson.relation, poisson.sensitivity_in_clip_norms) == ("add-or-remove-one", 1.0)
    assert (fixed.relation, fixed.sensitivity_in_clip_norms) == ("replace-one", 2.0)
    assert (poisson.expected_cohort(9), fixed.expected_cohort(9)) == (4.5, 5.0)
    assert fixed.sampling_rate(10) == 0.5


def test_a_million_clients_cost_no_more_than_their_cohort():
    calls = []

    class Counting(np.random.Generator):
        def geometric(self, p, size=None):
            calls.append(size)
            return super().geometric(p, size)

    cohort = PoissonSampling(rate=1e-4).sample(10**6, Counting(np.random.PCG64(0)))
    assert 40 < len(cohort) < 200
    assert sum(calls) < 500
