"""Sums of independent discrete losses by FFT, as upper bounds: every rounding is charged.

A Fourier transform errs by the same amount everywhere, which drowns a δ of 1e-12. So masses are
tilted first: multiplied by e^(order·loss) and divided by their sum, which moves the bulk of the
composed distribution to the ε in question, and back afterwards. The error is then a share of δ.
The bounds used here are proved in docs/privacy.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpfedls.privacy.accounting.gaussian import Floats
from dpfedls.privacy.accounting.loss_pmf import LossPmf

ROUND_OFF = 2.0**-53
FFT_LEVEL = (
    8 * ROUND_OFF
)  # error of an FFT of length 2^k, in units of Σ|x|, is at most k times this
PRODUCT = 3 * ROUND_OFF  # relative error of a product of two complex numbers
TILT = 2e-12  # relative error of one tilted mass, and of what undoes the tilt, for each round
SUMS = 1e-9  # relative error of the last sums over at most 2^18 positive terms


class Tilt(NamedTuple):
    """Where to look: the order of the tilt, the window of losses kept, a bound on what is above.

    Any values give an upper bound; good ones (tilting.py) give a tight one.
    """

    order: float
    first: int  # the window, in steps of the grid
    length: int  # a power of two
    tail_order: float  # of the Chernoff bound on losses above the window


class Composed(NamedTuple):
    """δ, never too small, at losses interval·(first, first + 1, …)."""

    interval: float
    first: int
    deltas: Floats

    def epsilon(self, delta: float) -> float:
        """The least ε >= 0 in the window whose δ is at most this; infinite if there is none."""
        above = np.flatnonzero(self.deltas > delta)
        if not above.size:
            return max(0.0, self.interval * self.first)
        last = int(above[-1])
        if last + 1 == len(self.deltas):
            return math.inf
        # Between two dots a discrete profile is linear in e^ε.
        left, right = self.deltas[last], self.deltas[last + 1]
        share = float((left - delta) / (left - right))
        step = self.interval
        if step < 1:  # e^step may overflow on the coarsest grids; then the next dot will do
            step = math.log1p(share * math.expm1(step))
        return max(0.0, self.interval * (self.first + last) + step)

    def delta(self, epsilon: float) -> float:
        """δ at this ε; 1 below the window."""
        place = epsilon / self.interval - self.first
        if place < 0:
            return 1.0
        last = math.floor(place)
        if last + 1 >= len(self.deltas):
            return float(self.deltas[-1])
        if self.interval >= 1:  # as above: the dot before will do
            return float(self.deltas[last])
        share = math.expm1((place - last) * self.interval) / math.expm1(self.interval)
        return float(self.deltas[last] + share * (self.deltas[last + 1] - self.deltas[last]))


def compose(parts: Sequence[tuple[LossPmf, int]], tilt: Tilt) -> Composed:
    """The loss of all parts together, each (one round's loss, how many times)."""
    interval, count = parts[0][0].interval, sum(times for _, times in parts)
    level = FFT_LEVEL * math.log2(tilt.length)
    half = tilt.length // 2 + 1  # of the coefficients, the others being conjugate to these
    product, log_size, log_bound = np.ones(half, complex), np.zeros(half), np.zeros(half)
    log_total = 0.0
    for pmf, times in parts:
        log_sum, weights = tilted(pmf, tilt.order)
        coefficients = np.fft.rfft(wrapped(weights, pmf.lowest, tilt.length))
        size = np.abs(coefficients)
        product *= power(coefficients, times)
        with np.errstate(divide="ignore"):
            log_size += times * np.log(size)
        log_bound += times * np.log(size + level)
        log_total += times * log_sum
    # |Π f̃ - Π f| <= Π(|f̃| + level) - Π|f̃|, then the powers' products, then the transform back.
    bound = np.exp(log_bound)
    error = mean(bound * (-np.expm1(log_size - log_bound) + PRODUCT * count + level), tilt.length)
    masses = np.roll(np.fft.irfft(product, tilt.length), -tilt.first % tilt.length)
    losses = interval * (tilt.first + np.arange(tilt.length + 1))
    slack = TILT * (count + 1) + SUMS
    untilt = np.minimum(log_total + slack - tilt.order * losses[:-1], 700.0)
    above = sum(times * tilted(pmf, tilt.tail_order)[0] for pmf, times in parts)
    beyond = infinite_mass(parts) + math.exp(
        min(0.0, above + slack - tilt.tail_order * float(losses[-1]))
    )
    deltas = profile(np.maximum(masses + error, 0.0) * np.exp(untilt), interval)
    return Composed(interval, tilt.first, np.minimum(deltas + beyond, 1.0))


def tilted(pmf: LossPmf, order: float) -> tuple[float, Floats]:
    """log Σ p·e^(order·loss), and the masses of that measure divided by their sum."""
    losses = pmf.interval * (pmf.lowest + np.arange(len(pmf.masses)))
    with np.errstate(divide="ignore"):
        logs = np.log(pmf.masses) + order * losses
    largest = float(logs.max())
    weights = np.exp(logs - largest)
    total = float(weights.sum())
    return largest + math.log(total), weights / total


def wrapped(weights: Floats, lowest: int, length: int) -> Floats:
    """The weights laid round a ring: what falls outside the window adds to it, never takes."""
    places = (lowest + np.arange(len(weights))) % length
    return np.bincount(places, weights, minlength=length).astype(np.float64)


def power(base: np.ndarray, exponent: int) -> np.ndarray:
    """base^exponent by squaring, so that at most ``exponent`` products' errors meet."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def mean(values: Floats, length: int) -> float:
    """The mean over all frequencies of a symmetric function known at half of them."""
    return float(2 * values.sum() - values[0] - values[-1]) / length


def infinite_mass(parts: Sequence[tuple[LossPmf, int]]) -> float:
    """The probability that some round's loss is infinite."""
    if any(pmf.infinite >= 1 for pmf, _ in parts):
        return 1.0
    return -math.expm1(sum(times * math.log1p(-pmf.infinite) for pmf, times in parts))


def profile(masses: Floats, interval: float) -> Floats:
    """Σ_{j>i} (1 - e^(l_i - l_j))·p_j at each i, by sums of positive terms alone."""
    from scipy.signal import lfilter

    beyond = np.append(np.cumsum(masses[:0:-1])[::-1], 0.0)  # Σ_{j>i} p_j
    # δ_i = e^-h·δ_{i+1} + (1 - e^-h)·Σ_{j>i} p_j.
    shrink = math.exp(-interval)
    return np.asarray(lfilter([-math.expm1(-interval)], [1.0, -shrink], beyond[::-1]))[::-1]
