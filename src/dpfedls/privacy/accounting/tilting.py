"""Where the composed loss must be looked at for a given δ: grid, order of the tilt and window.

Two constants bear on soundness, SHORTEST and LARGEST_EXPONENT; all else only on tightness and
speed: a round's loss is sketched by a quadrature, and the composed one by its cumulants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from dpfedls.privacy.accounting.compose import Tilt
from dpfedls.privacy.accounting.gaussian import Floats
from dpfedls.privacy.accounting.loss_pmf import largest_loss

STEPS_PER_DEVIATION = 64  # grid steps to one standard deviation of a round's loss; ε to 1e-4
STEPS_OF_ONE_ROUND = 512  # affordable where nothing is composed
MOST_STEPS = 2**18  # of a grid; beyond it the grid is coarsened
SHORTEST = 64  # window: at most 4,096 losses of a round fall on one place; TILT relies on it too
LARGEST_EXPONENT = 1000.0  # of a tilt; TILT in compose.py relies on it
OUTSIDE = math.log(1e10)  # the window leaves out 1e-10 of the tilted mass on either side


class Shape(NamedTuple):
    """One kind of round: q, mu = sensitivity ÷ noise, and how many times."""

    rate: float
    mu: float
    times: int


class Sketch(NamedTuple):
    """A round's loss at some outputs, with the logarithms of their weights."""

    losses: Floats
    log_weights: Floats


def sketches(shape: Shape, tail: float, *, symmetric: bool) -> list[Sketch]:
    """One round's loss for each direction that is composed, as in pld.one_round."""
    nodes = np.linspace(-tail, tail, 641)
    normal = -(nodes**2) / 2
    normal -= log_sum(normal)
    without, taking_part = loss(nodes, shape), loss(nodes + shape.mu, shape)
    with np.errstate(divide="ignore"):
        absent = normal + np.log1p(-shape.rate)
    # The grid's last dot carries all that lies beyond it, which a large order magnifies.
    last = float(log_ndtr(-tail))
    with np.errstate(divide="ignore"):
        lump = np.log((1 - shape.rate) * np.exp(log_ndtr(-tail - shape.mu) - last) + shape.rate)
    removed = Sketch(
        np.concatenate([without, taking_part, taking_part[-1:]]),
        np.concatenate([absent, normal + math.log(shape.rate), [lump + last]]),
    )
    if not symmetric:
        return [removed, Sketch(-np.append(without, without[0]), np.append(normal, last))]
    above = removed.losses > 0
    losses, weights = removed.losses[above], removed.log_weights[above]
    both = np.concatenate([weights, weights - losses])
    at_zero = math.log(max(1e-300, 1 - float(np.exp(both).sum())))
    return [Sketch(np.concatenate([losses, -losses, [0.0]]), np.append(both, at_zero))]


def loss(x: Floats, shape: Shape) -> Floats:
    """One round's privacy loss at output x, log(1 - q + q·e^(mu·x - mu²/2))."""
    without = math.log1p(-shape.rate) if shape.rate < 1 else -math.inf
    return np.logaddexp(without, math.log(shape.rate) + shape.mu * (x - shape.mu / 2))


def log_sum(logs: Floats) -> float:
    """log Σ e^x."""
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).sum()))


class Cumulants:
    """log E[e^(order·loss)] of all rounds together, and its first two derivatives."""

    def __init__(self, parts: Sequence[tuple[Sketch, int]]) -> None:
        self.parts = parts
        self.largest = max(float(np.abs(sketch.losses).max()) for sketch, _ in parts)

    def __call__(self, order: float) -> tuple[float, float, float]:
        value = first = second = 0.0
        for (losses, log_weights), count in self.parts:
            logs = log_weights + order * losses
            log_total = log_sum(logs)
            weights = np.exp(logs - log_total)
            mean = float(weights @ losses)
            value, first = value + count * log_total, first + count * mean
            second += count * float(weights @ (losses - mean) ** 2)
        return value, first, second


def saddle_point(cumulants: Cumulants, log_delta: float) -> float:
    """The order whose tilted mean is roughly the ε at this δ.

    δ ≈ e^(K - θ·K')/(1 + θ·(1 + θ)·√(2π·K'')) at ε = K', with K the cumulants at order θ.
    """
    most = LARGEST_EXPONENT / 2 / cumulants.largest

    def excess(log_order: float) -> float:
        order = math.exp(log_order)
        value, mean, variance = cumulants(order)
        width = math.sqrt(2 * math.pi * variance)
        return value - order * mean - math.log1p(order * (1 + order) * width) - log_delta

    guess = math.sqrt(-2 * log_delta / max(cumulants(0.0)[2], 1e-300))
    low, high = math.log(min(guess, most) / 1e6), math.log(most)
    if excess(high) >= 0 or excess(low) <= 0:
        return most if excess(high) >= 0 else math.exp(low)
    return math.exp(cast(float, brentq(excess, low, high, xtol=1e-2)))


def window(cumulants: Cumulants, order: float) -> tuple[float, float, float]:
    """Losses between which nearly all tilted mass lies, and the order to bound what is above."""
    value, _, variance = cumulants(order)
    most = LARGEST_EXPONENT / cumulants.largest
    steps = math.sqrt(2 * OUTSIDE / max(variance, 1e-300)) * np.geomspace(0.05, 4, 14)
    up = [min(order + step, most) for step in steps]
    tops = [(cumulants(u)[0] - value + OUTSIDE) / (u - order) for u in up]
    bottoms = [(value - cumulants(order - step)[0] - OUTSIDE) / step for step in steps]
    best = int(np.argmin(tops))
    # And down to where δ is nearly 1, so that the ε of every larger δ is in the window too.
    _, mean, variance = cumulants(0.0)
    return min(max(bottoms), mean - 3 * math.sqrt(variance)), tops[best], up[best]


def choose(
    shapes: Sequence[Shape], log_delta: float, tail: float, *, symmetric: bool
) -> tuple[float, list[Tilt], bool]:
    """The grid's interval, a tilt for each direction, and whether the grid had to be coarsened."""
    drawn = [sketches(shape, tail, symmetric=symmetric) for shape in shapes]
    counts = [shape.times for shape in shapes]
    steps = STEPS_OF_ONE_ROUND if sum(counts) == 1 else STEPS_PER_DEVIATION
    wanted = min(loss_deviation(shape) for shape in shapes) / steps
    longest = 2 * max(largest_loss(shape.rate, shape.mu, tail) for shape in shapes)
    found = []
    for direction in zip(*drawn, strict=True):
        cumulants = Cumulants(list(zip(direction, counts, strict=True)))
        order = saddle_point(cumulants, log_delta)
        found.append((order, *window(cumulants, order)))
        longest = max(longest, found[-1][2] - found[-1][1])
    interval = float(max(wanted, longest / (MOST_STEPS - 4)))
    tilts = []
    for order, low, high, tail_order in found:
        first = math.floor(low / interval)
        length = 2 ** math.ceil(math.log2(max(math.ceil(high / interval) - first + 2, SHORTEST)))
        tilts.append(Tilt(order, first, length, tail_order))
    return interval, tilts, interval > wanted


def loss_deviation(shape: Shape) -> float:
    """Root mean square of one round's loss without the person, that is for a standard normal x."""
    nodes = np.linspace(-8.0, 8.0, 321)
    normal = np.exp(-(nodes**2) / 2)
    return math.sqrt(float(normal @ loss(nodes, shape) ** 2 / normal.sum()))


def rough_rdp_epsilon(shapes: Sequence[Shape], delta: float) -> float:
    """About the least that RDP could say, in a millisecond: whether the proven bound is worth it.

    ρ(α) = log E[e^((α - 1)·loss)]/(α - 1) by the sketch, which leaves out what is far away, and
    today's conversion; a hundredth less, for the quadrature.
    """
    orders = np.geomspace(1.05, 2048.0, 120)
    curve = np.zeros_like(orders)
    for shape in shapes:
        removed = sketches(shape, 9.0, symmetric=False)[0]
        log_moments = [log_sum(removed.log_weights + (a - 1) * removed.losses) for a in orders]
        curve += shape.times * np.array(log_moments) / (orders - 1)
    if np.any(delta**2 + np.expm1(-np.maximum(curve, 0.0)) > 0):  # total variation below δ
        return 0.0
    costs = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return 0.99 * max(0.0, float(costs.min()))
