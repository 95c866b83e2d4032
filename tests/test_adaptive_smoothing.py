"""Smoothing that finds its own strength: where neighbours are alike, and nowhere else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpfedls.denoisers.adaptive import (
    AdaptiveSmoothing,
    smooth_axes,
    smooth_path,
    strength_along,
)
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout

RNG = torch.Generator().manual_seed(0)


def autoregressive(alike: float, rows: int, size: int) -> Tensor:
    """Rows of a stationary process whose neighbours have that correlation."""
    noise = torch.randn(rows, size, generator=RNG)
    out = [noise[:, 0]]
    for k in range(1, size):
        out.append(alike * out[-1] + math.sqrt(1 - alike**2) * noise[:, k])
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("size", [2, 5, 9, 32])
@pytest.mark.parametrize("strength", [0.3, 4.0])
def test_the_filter_solves_the_laplacian_of_a_path_with_free_ends(size, strength):
    ones = torch.ones(size - 1)
    laplacian = torch.diag(torch.cat([ones, ones[:0], ones.new_zeros(1)]))
    laplacian += torch.diag(torch.cat([ones.new_zeros(1), ones]))
    laplacian -= torch.diag(ones, 1) + torch.diag(ones, -1)
    x = torch.randn(3, size, 4, generator=RNG)
    dense = torch.linalg.solve(torch.eye(size) + strength * laplacian, x)
    torch.testing.assert_close(smooth_path(x, strength, 1), dense, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("alike", [0.3, 0.5, 0.65])
def test_the_strength_is_that_of_the_process_in_much_noise(alike):
    """Three times the signal's power in noise; ρ has a standard error of 0.012 at most."""
    signal = autoregressive(alike, 400, 784)
    noisy = signal + math.sqrt(3) * torch.randn(signal.shape, generator=RNG)
    least, most = (rho / (1 - rho) ** 2 for rho in (alike - 0.05, alike + 0.05))
    assert least < strength_along(noisy, 1) < most


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_the_strength_is_less_where_there_is_less_noise(noise):
    """By K (K + noise ÷ 8)⁻¹, K the covariance of the process, ρ = 0.5.

    Found ÷ expected is 0.97 ± 0.03 to 0.94 ± 0.08 in forty draws: a false alarm in ten thousand.
    """
    signal = autoregressive(0.5, 400, 784)
    noisy = signal + math.sqrt(noise) * torch.randn(signal.shape, generator=RNG)
    found = strength_along(noisy, 1, noise)
    slow = (1 + 0.5) / (1 - 0.5)  # of a process of variance 1
    assert found == pytest.approx(2 / (1 + 8 * slow / noise), rel=0.35)
    assert strength_along(noisy, 1, 0.0) == 0.0
    assert strength_along(noisy, 1) > found


def test_noise_alone_is_left_as_it_is():
    """Each case is smoothed by chance once in 4,300 times: 40 cases, false alarm 1 %."""
    for _ in range(40):
        noise = torch.randn(10, 64, generator=RNG)
        assert smooth_axes(noise) is noise


def test_what_a_row_has_in_common_is_no_smoothness():
    """Hidden units all above zero give each class one sign along them: not neighbours alike."""
    rows = torch.randn(30, 1, generator=RNG) * 3 + torch.randn(30, 128, generator=RNG)
    assert strength_along(rows, 1) == 0.0


def test_what_is_alike_again_further_away_is_no_smoothness():
    """Products of 0.48, −0.36, 0.48, 0.8, as small images have them; once smoothed at the most."""
    white = torch.randn(10, 400, generator=torch.Generator().manual_seed(0))
    taps = (1.0, 0.6, -0.2, 0.0, 0.8)
    rows = sum(tap * white[:, 4 - k : 396 - k] for k, tap in enumerate(taps))
    assert isinstance(rows, Tensor)
    assert strength_along(rows, 1) == 0


def test_the_axis_of_units_and_classes_is_never_smoothed():
    alike = autoregressive(0.9, 64, 40).T.contiguous()  # neighbouring classes are alike
    assert strength_along(alike, 0) > 1
    assert smooth_axes(alike) is alike


def test_the_server_gets_to_the_smoothed_sum_of_all_releases_whatever_its_steps():
    layout = Layout(("w", "b"), ((10, 64), (10,)))
    denoiser, params = AdaptiveSmoothing(), torch.zeros(layout.dim)
    memory, total = denoiser.start(layout), torch.zeros(layout.dim)
    signal = torch.cat([autoregressive(0.6, 10, 64).reshape(-1), torch.ones(10)])
    for t, step in enumerate([0.5, 0.1, 0.7, 0.01]):
        value = signal + torch.randn(layout.dim, generator=RNG)
        direction, memory = denoiser(Release(value, 1.0, layout, t, step=step), memory)
        params, total = params + step * direction, total + step * value
    noise = 0.5**2 + 0.1**2 + 0.7**2 + 0.01**2
    assert float(memory["noise"]) == pytest.approx(noise)
    weight = smooth_axes(total[:640].view(10, 64), noise)
    assert not torch.equal(weight, total[:640].view(10, 64))
    torch.testing.assert_close(params[:640].view(10, 64), weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(params[640:], total[640:], atol=1e-5, rtol=1e-4)


def test_a_run_that_earlier_code_began_is_told_that_it_cannot_go_on():
    layout = Layout(("w",), ((10, 64),))
    earlier = {"total": torch.zeros(640), "smoothed": torch.zeros(640)}
    with pytest.raises(InputError, match="begin anew in another folder"):
        AdaptiveSmoothing()(Release(torch.zeros(640), 1.0, layout, 3), earlier)
