from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfedls.clipping import Bound, clip, clipped_sum

NORMS = st.floats(1e-6, 1e6)


@given(
    norm=NORMS,
    scale=st.floats(-30, 37.5),
    dim=st.integers(1, 300),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_no_clipped_row_exceeds_the_norm_in_float64(norm, scale, dim, seed, dtype):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, dim, generator=rng, dtype=torch.float64) * 10.0**scale
    lengths = torch.linalg.vector_norm(clip(rows.to(dtype), norm).double(), dim=1)
    assert (lengths <= norm).all()


def test_norm_is_nearly_reached_and_direction_kept():
    rows = torch.tensor([[3.0, 4.0], [30.0, 40.0]])
    clipped = clip(rows, 1.0)
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8], [0.6, 0.8]]), rtol=1e-6, atol=0)


def test_rows_inside_the_ball_are_untouched_to_the_bit():
    rows = torch.randn(50, 9) * 0.01
    assert torch.equal(clip(rows, 1.0), rows)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_broken_client_counts_as_zero_and_harms_no_other(poison):
    rows = torch.randn(3, 4)
    alone = clip(rows[1:], 0.5)
    rows[0, 2] = poison
    clipped = clip(rows, 0.5)
    assert torch.equal(clipped[0], torch.zeros(4))
    assert torch.equal(clipped[1:], alone)


def test_a_float32_row_whose_square_overflows_is_still_clipped():
    clipped = clip(torch.full((1, 4), 3e38), 1.0)
    torch.testing.assert_close(clipped, torch.full((1, 4), 0.5), rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm", [1e-4, 0.01, 0.3, 5.0])
@pytest.mark.parametrize("kind", ["constant", "random"])
def test_the_largest_rows_a_float32_can_hold_stay_inside(norm, kind):
    rng = torch.Generator().manual_seed(1)
    for dim in (100, 7850, 100_000):
        rows = torch.full((1, dim), 3.4e38)
        if kind == "random":
            rows = rows * (2 * torch.rand(3, dim, generator=rng) - 1)
        length = torch.linalg.vector_norm(clip(rows, norm).double(), dim=1)
        assert (length <= norm).all()
        assert (length > norm * (1 - 1e-5)).all()


def test_zero_rows_stay_zero_and_infinity_means_no_clipping():
    assert torch.equal(clip(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))
    rows = torch.tensor([[1e20, 1.0], [math.nan, 1.0]])
    assert torch.equal(clip(rows, math.inf), torch.tensor([[1e20, 1.0], [0.0, 0.0]]))


def test_the_norm_runs_over_all_parameters_together():
    # Two "layers" of norm 1 each: per-layer clipping to 1 would leave both, flat clipping must not.
    row = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    assert float(clip(row, 1.0).norm()) <= 1.0


@pytest.mark.parametrize("dim", [1, 700, 200_000])
def test_the_sum_is_that_of_the_clipped_rows_however_many_are_near(dim):
    """Rows taken one by one, a few at a time, or all at once; a broken one is in the middle."""
    updates = torch.randn(400 if dim < 1000 else 5, dim)
    updates[3] = torch.nan
    found, expected = clipped_sum(updates, Bound(0.7)), clip(updates, 0.7).double().sum(dim=0)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not clipped_sum(updates[:0], Bound(0.7)).any()
