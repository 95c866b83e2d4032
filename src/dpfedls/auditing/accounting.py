"""A second opinion on ε, from nothing but how people were sampled, the noise added and the rounds.

It shares no code with ``dpfedls.privacy``. Added or removed, a person moves the sum by the clip
norm C while all others send zero; replaced, by 2C while all others send what the other one sends.
The pair of distributions is that of the sum along this direction, so its δ is reached by the
mechanism itself: a claimed ε at which it exceeds the promised δ is too small.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy.stats import norm

from dpfedls.sampling import FixedSizeSampling, Sampler

TOLERANCE = 0.01  # relative, in δ: rounding to the grid; 1 % more noise moves δ by more than that
_CELLS, _GRID = 2**15, 2**18


def delta_at(
    epsilon: float, sampler: Sampler, num_clients: int, noise_multiplier: float, rounds: int
) -> float:
    """δ of so many rounds at ``epsilon``, the larger of both directions."""
    if noise_multiplier <= 0:
        return 1.0
    step = 2.0 if isinstance(sampler, FixedSizeSampling) else 1.0
    rate = sampler.sampling_rate(num_clients)
    return max(
        float(np.sum(masses * -np.expm1(np.minimum(epsilon - losses, 0.0))))
        for losses, masses in _composed(rate, noise_multiplier / step, rounds)
    )


@functools.lru_cache(maxsize=256)
def _composed(rate: float, noise: float, rounds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The distribution of the privacy loss after so many rounds, in both directions."""
    edges = np.linspace(-9 * noise - 1, 9 * noise + 1, _CELLS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    gone, sampled = (np.diff(norm.cdf(edges, mean, noise)) for mean in (0.0, 1.0))
    there = (1 - rate) * gone + rate * sampled
    shifted = np.log(rate) + (2 * middle - 1) / (2 * noise**2)
    loss = np.logaddexp(np.log1p(-rate), shifted) if rate < 1 else shifted
    return [_fold(loss, there, rounds), _fold(-loss, gone, rounds)]


def _fold(loss: np.ndarray, mass: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum of ``rounds`` independent losses, by FFT on a grid that holds nearly all of it."""
    mean = float(loss @ mass)
    spread = float(np.sqrt(max((loss - mean) ** 2 @ mass, 1e-300)))
    width = 2 * (10 * spread * np.sqrt(rounds) + 2 * float(np.abs(loss - mean).max()))
    size = _GRID
    step = width / size
    # Each mass is divided among two cells so that its mean stays where it is.
    place = (loss - mean) / step
    left = np.floor(place).astype(np.int64)
    share = place - left
    one = np.bincount(left % size, mass * (1 - share), size)
    one += np.bincount((left + 1) % size, mass * share, size)
    summed = np.clip(np.fft.irfft(np.fft.rfft(one) ** rounds, size), 0, None)
    offsets = (np.arange(size) + size // 2) % size - size // 2
    return offsets * step + rounds * mean, summed
