from __future__ import annotations

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dpfedls
from dpfedls import (
    Identity,
    InputError,
    JamesStein,
    LaplacianSmoothing,
    Release,
    SoftThreshold,
    effective_dimension,
    smooth,
)
from dpfedls.parameters import Layout

LAYOUT = Layout(("conv", "weight", "bias", "scale"), ((2, 3, 2, 4), (5, 7), (5,), ()))
ORDERS = ("BCHW", "BCWH", "BHWC", "BWHC")


def ring_matrix(dim: int, strength: float) -> torch.Tensor:
    """I + strength · L written out, neighbour by neighbour: right for 1 and 2 entries too."""
    matrix = torch.eye(dim, dtype=torch.float64)
    for i in range(dim):
        for neighbour in ((i + 1) % dim, (i - 1) % dim):
            matrix[i, i] += strength
            matrix[i, neighbour] -= strength
    return matrix


def release(seed: int = 0, noise_stddev: float = 0.1) -> Release:
    value = torch.randn(LAYOUT.dim, generator=torch.Generator().manual_seed(seed))
    return Release(value, noise_stddev, LAYOUT)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 7, 8, 31, 128, 257])
@pytest.mark.parametrize("strength", [0.1, 1.0, 37.5])
def test_smoothing_equals_a_dense_solve(dim, strength):
    x = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
    expected = torch.linalg.solve(ring_matrix(dim, strength), x)
    torch.testing.assert_close(smooth(x, strength), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(smooth(x.float(), strength), expected.float(), rtol=2e-6, atol=2e-6)


@given(dim=st.integers(1, 400), strength=st.floats(0, 1e4), seed=st.integers(0, 10**6))
def test_smoothing_keeps_the_sum_and_never_adds_to_the_norm(dim, strength, seed):
    x = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    y = smooth(x, strength)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert abs(float(y.sum() - x.sum())) < 1e-9
    assert float(y.norm()) <= float(x.norm()) * (1 + 1e-12)


def test_ten_million_entries_solve_the_equation():
    dim, strength = 10_000_019, 3.0  # a prime
    x = torch.randn(dim, generator=torch.Generator().manual_seed(0))
    y = smooth(x, strength).double()
    residual = y + strength * (2 * y - y.roll(1) - y.roll(-1)) - x
    assert float(residual.norm() / x.double().norm()) < 5e-6


def test_strength_zero_is_the_identity_to_the_bit_and_gives_a_copy():
    x = torch.randn(11)
    y = smooth(x, 0.0)
    assert torch.equal(x, y)
    assert y.data_ptr() != x.data_ptr()
    for scope in ("tensor", "model"):
        assert torch.equal(LaplacianSmoothing(strength=0, scope=scope)(release()), release().value)
    assert torch.equal(Identity()(release()), release().value)


def test_half_precision_comes_back_in_half_precision():
    assert smooth(torch.randn(6, dtype=torch.bfloat16), 1.0).dtype == torch.bfloat16


def test_scope_tensor_smooths_each_tensor_by_itself():
    pieces = LAYOUT.split(release().value)
    expected = torch.cat([smooth(t, 2.0).reshape(-1) for t in pieces.values()])
    assert torch.equal(LaplacianSmoothing(strength=2.0)(release()), expected)


def test_scope_model_smooths_one_ring():
    denoised = LaplacianSmoothing(strength=2.0, scope="model")(release())
    torch.testing.assert_close(denoised, smooth(release().value, 2.0))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scope", ["tensor", "model"])
def test_kernels_lie_along_the_ring_in_the_order_asked_for(order, scope):
    """Against an explicit loop over the axes in that order, for kernels and the rest."""
    strength, r = 1.5, release()
    conv = LAYOUT.split(r.value)["conv"]
    sizes = dict(zip("BCHW", conv.shape, strict=True))
    ranges = [range(sizes[axis]) for axis in order]
    where = [
        tuple(dict(zip(order, i, strict=True))[a] for a in "BCHW")
        for i in itertools.product(*ranges)
    ]
    walk = torch.stack([conv[index] for index in where])
    rest = r.value[conv.numel() :]
    if scope == "model":
        smoothed = smooth(torch.cat([walk, rest]), strength)[: conv.numel()]
    else:
        smoothed = smooth(walk, strength)
    expected = torch.empty_like(conv)
    for index, value in zip(where, smoothed, strict=True):
        expected[index] = value
    denoised = LaplacianSmoothing(strength=strength, scope=scope, order=order)(r)
    torch.testing.assert_close(LAYOUT.split(denoised)["conv"], expected)


def test_james_stein_by_its_formula_and_not_truncated():
    x = torch.tensor([0.3, -0.1, 0.2, 0.0])
    r = Release(x, 0.5, Layout(("w",), ((4,),)))
    factor = 1 - 2 * 0.25 / float(x.double().square().sum())
    assert factor < 0
    torch.testing.assert_close(JamesStein()(r), x * factor)
    assert torch.equal(JamesStein()(Release(torch.zeros(4), 0.5, r.layout)), torch.zeros(4))
    assert torch.equal(JamesStein()(Release(x, 0.0, r.layout)), x)


def test_soft_threshold_by_its_formula():
    x = torch.tensor([3.0, -3.0, 0.1])
    level = 0.5 * math.sqrt(2 * math.log(3))
    expected = torch.tensor([3 - level, level - 3, 0.0])
    torch.testing.assert_close(SoftThreshold()(Release(x, 0.5, Layout(("w",), ((3,),)))), expected)


@pytest.mark.parametrize(
    "denoiser", [LaplacianSmoothing(strength=9.0), JamesStein(), SoftThreshold()]
)
def test_a_tensor_of_one_number_is_left_alone(denoiser):
    assert denoiser(release())[-1] == release().value[-1]


@pytest.mark.parametrize("strength", [-0.1, math.nan, math.inf])
def test_a_strength_that_is_not_one_is_refused(strength):
    for make in (
        lambda: LaplacianSmoothing(strength=strength),
        lambda: smooth(torch.ones(2), strength),
    ):
        with pytest.raises(InputError, match="strength must be a finite number >= 0"):
            make()


def test_what_is_no_tensor_or_no_number_is_told_in_plain_words():
    plain = inspect.unwrap(smooth)  # without the types that tests alone check
    with pytest.raises(InputError, match=r"needs a tensor, got .*torch\.as_tensor"):
        plain([1.0, 2.0], 1.0)
    for wrong in ("1", None):
        with pytest.raises(InputError, match=f"strength must be .*, got {wrong!r}"):
            dpfedls.effective_dimension(9, wrong)


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("power", [1, 2])
def test_effective_dimension_is_the_trace(dim, power):
    inverse = torch.linalg.inv(ring_matrix(dim, 2.5))
    expected = float(torch.linalg.matrix_power(inverse, power).trace())
    assert effective_dimension(dim, 2.5, power) == pytest.approx(expected, rel=1e-12)
    assert effective_dimension(dim, 0.0, power) == dim


def test_noise_variance_falls_by_the_effective_dimension():
    """Proposition 1. False alarm below 1e-6: the statistic's relative deviation is 0.14 %."""
    dim, strength = 1000, 1.0
    noise = torch.randn(1000, dim, generator=torch.Generator().manual_seed(3))
    left = sum(float(smooth(row, strength).double().square().sum()) for row in noise) / 1000
    assert left == pytest.approx(effective_dimension(dim, strength, power=2), rel=7e-3)


@pytest.mark.parametrize("strength", [1e-6, 0.1, 1.0, 3.0, 100.0, 1e4, 1e8])
@pytest.mark.parametrize("dim", [2, 3, 5, 64, 1009])
def test_passes_round_the_ring_equal_the_fourier_transform(dim, strength):
    rng = torch.Generator().manual_seed(dim)
    ring = torch.randn(dim, generator=rng, dtype=torch.float64)
    k = torch.arange(dim // 2 + 1, dtype=torch.float64)
    gains = 1 / (1 + 4 * strength * torch.sin(math.pi * k / dim) ** 2)
    expected = torch.fft.irfft(torch.fft.rfft(ring) * gains, n=dim)
    scale = expected.abs().max()
    assert (smooth(ring, strength) - expected).abs().max() < 1e-12 * scale
    assert (smooth(ring.float(), strength) - expected).abs().max() < 2e-6 * scale


def test_any_strength_ends_and_an_absurd_one_is_refused():
    ring = torch.randn(50, dtype=torch.float64) + 3
    assert smooth(ring, 1e12).sum() == pytest.approx(float(ring.sum()), rel=1e-9)
    for strength in (1e13, 1e300):
        with pytest.raises(InputError, match="at most"):
            smooth(ring, strength)
    assert smooth(torch.nn.Parameter(torch.randn(5)), 1.0).requires_grad is False
