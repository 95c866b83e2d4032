"""Whether noise is what the proof needs: standard normal, fresh, and of full precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from dpfedls.randomness import RandomStreams, SystemStreams

FALSE_ALARMS = 1e-5  # of one call of ``noise_problems``, all of its tests together
DRAWS, ROUNDS = 2**20, 64  # of the deployed generator, by itself
_KEYS = 400
_LOW_BITS = 8  # of the mantissa
_CPU = torch.device("cpu")

Draws = NDArray[np.float64]


def noise_problems(draws: Draws) -> list[str]:
    """What is wrong with rounds × coordinates that should be independent standard normals."""
    rounds, dim = draws.shape
    flat = draws.reshape(-1)
    tests = {
        "its variance is {} of what it should be".format(
            f"{float(np.mean(flat**2)):.4g}"
        ): _chi_square(float(flat @ flat), flat.size),
        "its mean is not zero": _normal(float(flat.sum()) / np.sqrt(flat.size)),
        "it is not normal (Kolmogorov–Smirnov)": float(stats.kstest(flat, "norm").pvalue),
        "its tails are not a normal's": _tails(flat),
        "some rounds have another variance": min(
            1.0, rounds * min(_chi_square(float(row @ row), dim) for row in draws)
        ),
        "some coordinates have another variance": min(
            1.0, dim * float(_chi_squares((draws**2).sum(axis=0), rounds).min())
        ),
        "coordinates are correlated": _lags(draws),
        "rounds are correlated": _rounds(draws),
        "low bits of its mantissa are not used": _bits(flat),
    }
    problems = [text for text, p in tests.items() if not p >= FALSE_ALARMS / len(tests)]
    # Among n doubles one pair is equal with probability n² · 1e-16 or so; signs do not matter.
    same = flat.size - len(np.unique(np.abs(flat)))
    if same > 1 + 1e-15 * flat.size**2:
        problems.append(f"{same} of its {flat.size} values were there before")
    return problems


def stream_problems(streams: RandomStreams) -> list[str]:
    """The same of a source of noise by itself, round by round."""
    draws = torch.stack([streams.noise(t)(DRAWS // ROUNDS, _CPU) for t in range(ROUNDS)])
    problems = [] if draws.dtype == torch.float64 else [f"it is {draws.dtype}, not float64"]
    return problems + noise_problems(draws.double().numpy())


def deployed_problems() -> list[str]:
    """Of the operating system's streams: keys of 128 bits, all used, all different; fresh names."""
    with _keys() as (keys, entropy):
        streams = SystemStreams()
        problems = stream_problems(streams)
        other = SystemStreams()
        for t in range(_KEYS // 2):  # another object, the same rounds: nothing may come again
            other.sampling(t % 3)
            other.noise(t % 3)(1, _CPU)
    if len(keys) != ROUNDS + 2 * (_KEYS // 2):
        problems.append(f"{len(keys)} keys for {ROUNDS + _KEYS} generators: one each is needed")
    if len(set(keys)) < len(keys):
        problems.append("a key comes again")
    if not set(keys) <= {int.from_bytes(drawn[:16]) for drawn in entropy}:
        problems.append("keys do not come from the operating system")
    bits = np.array([[key >> bit & 1 for bit in range(128)] for key in keys] or [[0] * 128])
    chance = stats.binom(len(bits), 0.5)
    ones = bits.sum(axis=0)
    stuck = 2 * np.minimum(chance.cdf(ones), chance.sf(ones - 1)) < FALSE_ALARMS / 128
    if stuck.any() or any(key >> 128 for key in keys):
        problems.append(
            f"{int(stuck.sum())} of the 128 bits of its keys do not vary as they should"
        )
    cpu = torch.device("cpu")
    shared = [source.nonce(t, cpu) for source in (streams, other) for t in (0, 0, 1)]
    orders = [source.shuffling(0) for source in (streams, other, other)]
    if len(set(shared)) < len(shared) or min(map(len, shared)) < 32 or len(set(orders)) < 3:
        problems.append("names of releases (nonces) or orders of samples come again")
    return problems


@contextmanager
def _keys() -> Iterator[tuple[list[int], list[bytes]]]:
    """Every key that a generator is made with meanwhile, and what the operating system gave."""
    import os
    import random

    import randomgen

    real, keys = randomgen.AESCounter, []
    source, entropy = os.urandom, []

    def given(size: int) -> bytes:
        entropy.append(source(size))
        return entropy[-1]

    def watched(*args: object, **named: object) -> object:
        key = named.get("key", args[-1] if args else 0)
        keys.append(key if isinstance(key, int) else 0)
        return real(*args, **named)  # pyright: ignore[reportArgumentType]

    randomgen.AESCounter = watched  # pyright: ignore[reportAttributeAccessIssue]
    os.urandom = random._urandom = given  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield keys, entropy
    finally:
        randomgen.AESCounter = real
        os.urandom = random._urandom = source  # pyright: ignore[reportAttributeAccessIssue]


def _chi_squares(sums: np.ndarray, free: int) -> np.ndarray:
    return 2 * np.minimum(stats.chi2.cdf(sums, free), stats.chi2.sf(sums, free))


def _chi_square(total: float, free: int) -> float:
    return float(_chi_squares(np.array(total), free))


def _normal(z: float) -> float:
    return 2 * float(stats.norm.sf(abs(z)))


def _tails(flat: Draws) -> float:
    """Values beyond 2, 3 and 4 standard deviations, as many as they should be."""
    found = []
    for level in (2.0, 3.0, 4.0):
        chance = 2 * float(stats.norm.sf(level))
        found.append(stats.binomtest(int((np.abs(flat) > level).sum()), flat.size, chance).pvalue)
    return min(1.0, 3 * float(min(found)))


def _lags(draws: Draws) -> float:
    """Products of coordinates at every distance, over all rounds; half the length is one."""
    rounds, dim = draws.shape
    if dim < 2:
        return 1.0
    size = 2 ** math.ceil(math.log2(2 * dim))
    power = np.zeros(size // 2 + 1)
    for row in draws:
        power += np.abs(np.fft.rfft(row, size)) ** 2
    sums = np.fft.irfft(power, size)[1:dim]
    pairs = rounds * np.arange(dim - 1, 0, -1)
    enough = pairs >= 200  # else a sum of products is not normal
    if not enough.any():
        return 1.0
    return min(1.0, int(enough.sum()) * _normal(float(np.abs(sums / np.sqrt(pairs))[enough].max())))


def _rounds(draws: Draws) -> float:
    """Products of all pairs of rounds, coordinate by coordinate."""
    rounds, dim = draws.shape
    if rounds < 2 or dim < 200:
        return 1.0
    products = np.abs(np.triu(draws @ draws.T, 1)) / np.sqrt(dim)
    return min(1.0, rounds * (rounds - 1) / 2 * _normal(float(products.max())))


def _bits(flat: Draws) -> float:
    """Each of the last bits is set, and unset, in a fifth of all values at least."""
    low = flat.view(np.int64)
    shares = [float((low >> bit & 1).mean()) for bit in range(_LOW_BITS)]
    return 0.0 if flat.size > 10_000 and max(abs(share - 0.5) for share in shares) > 0.3 else 1.0
