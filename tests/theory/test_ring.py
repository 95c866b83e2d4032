from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpfedls
from dpfedls import InputError, theory
from problems import ring_matrix


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 8, 31, 128])
@pytest.mark.parametrize("strength", [0.0, 1e-9, 0.1, 1.0, 37.5, 1e6])
def test_closed_form_sum_and_dense_eigenvalues_agree(dim, strength):
    dense = 1 / np.linalg.eigvalsh(ring_matrix(dim, strength))
    found = theory.eigenvalues(dim, strength)
    np.testing.assert_allclose(np.sort(found), np.sort(dense), rtol=1e-8)
    assert theory.smallest_eigenvalue(dim, strength) == pytest.approx(found.min(), rel=1e-12)
    assert theory.smallest_eigenvalue(dim, strength) >= 1 / (1 + 4 * strength)
    for power in (1, 2):
        closed = theory.effective_dimension(dim, strength, power)
        assert closed == pytest.approx(np.sum(dense**power), rel=1e-8)
        by_sum = theory.effective_dimension_by_sum(dim, strength, power)
        assert closed == pytest.approx(by_sum, rel=1e-12)
        assert closed == pytest.approx(dpfedls.effective_dimension(dim, strength, power), rel=1e-12)


@given(dim=st.integers(1, 5000), strength=st.floats(0, 1e6), power=st.sampled_from([1, 2]))
def test_closed_form_equals_the_sum(dim, strength, power):
    closed = theory.effective_dimension(dim, strength, power)
    by_sum = theory.effective_dimension_by_sum(dim, strength, power)
    assert closed == pytest.approx(by_sum, rel=1e-11)


@pytest.mark.parametrize("power", [1, 2])
def test_closed_form_equals_the_sum_beyond_one_chunk_of_memory(power):
    for dim, strength in ((3_431_754, 1.0), (2_000_003, 1e6)):
        closed = theory.effective_dimension(dim, strength, power)
        by_sum = theory.effective_dimension_by_sum(dim, strength, power)
        assert closed == pytest.approx(by_sum, rel=1e-12)


def test_effective_dimensions_in_the_limits():
    assert theory.effective_dimension(10**8, 0.0) == 10**8
    s = math.sqrt(1 + 4e6)  # a long ring forgets that it closes
    assert theory.effective_dimension(10**8, 1e6) == pytest.approx(1e8 / s, rel=1e-14)
    assert theory.effective_dimension(10**8, 1e6, 2) == pytest.approx(1e8 * (1 + 2e6) / s**3)
    # All that is left of a short ring smoothed without end is its mean.
    assert theory.effective_dimension(9, 1e12) == pytest.approx(1, abs=1e-9)
    assert theory.effective_dimension(9, 1e12, 2) == pytest.approx(1, abs=1e-9)
    # σ → 0 is the identity, without a jump.
    assert theory.effective_dimension(50, 1e-300) == pytest.approx(50)
    assert theory.effective_dimension(50, 1e-12, 2) == pytest.approx(50 * (1 - 4e-12), rel=1e-14)


@given(dim=st.integers(2, 10**8), strength=st.floats(1e-6, 1e5), power=st.sampled_from([1, 2]))
def test_effective_dimension_falls_as_smoothing_grows(dim, strength, power):
    weak = theory.effective_dimension(dim, strength, power)
    strong = theory.effective_dimension(dim, 1.5 * strength, power)
    assert 1 <= strong < weak <= dim
    both = [theory.effective_dimension(dim, strength, p) for p in (1, 2)]
    assert both[1] <= both[0] * (1 + 1e-12)  # Λ ≤ 1


@pytest.mark.parametrize("dim", [1, 2, 7, 40])
def test_squared_norm_is_the_quadratic_form(dim):
    v = np.random.default_rng(dim).normal(size=dim)
    expected = v @ ring_matrix(dim, 2.5) @ v
    assert theory.squared_norm(v, 2.5) == pytest.approx(expected, rel=1e-12)


def test_the_ring_refuses_what_it_cannot_be():
    with pytest.raises(InputError, match="dim must be a whole number >= 1"):
        theory.effective_dimension(0, 1.0)
    with pytest.raises(InputError, match="strength"):
        theory.eigenvalues(3, -1.0)


def squared_errors(v, noise_stddev, strength, trials, seed):
    noise = torch.randn(trials, v.size, dtype=torch.float64, generator=_generator(seed))
    signal = torch.from_numpy(v)
    smoothed = (dpfedls.smooth(signal + noise_stddev * row, strength) for row in noise)
    return np.array([float((estimate - signal).square().sum()) for estimate in smoothed])


def _generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dim", [33, 64])
@pytest.mark.parametrize("strength", [0.0, 1.0, 4.0])
def test_proposition_1_holds_in_simulation(dim, strength):
    """Within 4 standard errors of the mean: a right formula fails once in 16,000 tests."""
    v, noise_stddev = 2 * np.sin(np.linspace(0, 15, dim)), 0.3
    errors = squared_errors(v, noise_stddev, strength, trials=3000, seed=dim)
    spread = errors.std() / math.sqrt(errors.size)
    expected = theory.risk(v, noise_stddev, strength)
    assert abs(errors.mean() - expected.total) < 4 * spread
    if strength:  # the test would notice d_σ in the place of d̃_σ, and a lost bias
        wrong = expected.bias + noise_stddev**2 * theory.effective_dimension(dim, strength)
        assert abs(errors.mean() - wrong) > 10 * spread
        assert abs(errors.mean() - expected.variance) > 10 * spread


def test_bias_is_what_smoothing_takes_from_the_signal():
    v = np.random.default_rng(0).normal(size=50)
    lost = v - np.linalg.solve(ring_matrix(50, 1.7), v)
    assert theory.risk(v, 0.2, 1.7).bias == pytest.approx(lost @ lost, rel=1e-12)
    assert theory.risk(v, 0.2, 0.0) == (0.0, pytest.approx(0.04 * 50))
    assert theory.risk(np.ones(20), 0.2, 5.0).bias == pytest.approx(0, abs=1e-25)


def test_smoothing_helps_where_noise_is_large_and_hurts_where_it_is_small():
    """Supplement S6: the sine of 30 units, with little noise and with much."""
    v = np.sin(np.linspace(0, 30, 300))
    for noise_stddev, helps in ((0.001, False), (0.5, True)):
        plain = theory.risk(v, noise_stddev, 0.0).total
        assert (theory.risk(v, noise_stddev, 1.0).total < plain) is helps
