"""Calibration: where a falling curve meets a target, in few evaluations and never above it."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpfedls.errors import InputError

WINDOW = 1e-3  # the promise: at most 0.1 % below the target
SAME = 1e-5  # two noises closer than this, relatively, are one
FARTHEST = math.log(1e4)  # no guess is wrong by more


def noise_reaching(curve: Callable[[float], float], target: float, guess: float) -> float:
    """A noise with (1 - WINDOW)·target < curve(noise) <= target; curve falls as noise grows.

    Regula falsi on log ε against log noise, aimed at the middle of the window. Where the curve
    jumps over the window, the least noise found on the safe side of the jump.
    """
    aim = math.log(target) + math.log1p(-WINDOW / 2)
    x, low, high = math.log(guess), None, None  # low: ε too large; high: ε small enough
    for step in range(60):
        value = curve(math.exp(x))
        if target * (1 - WINDOW) < value <= target:
            return math.exp(x)
        point = (x, math.log(value) - aim if 0 < value < math.inf else math.inf * (value - target))
        low, high = (point, high) if value > target else (low, point)
        if high is not None and low is not None:
            if high[0] - low[0] < SAME:
                return math.exp(high[0])
            x = _between(low, high, bisect=step % 3 == 2)
        else:
            # As if ε were 1/noise, and a little further, until there is a bracket.
            move = min(max(abs(point[1]) * 1.2, 0.05), 2.0)
            x += move if high is None else -move
            if x - math.log(guess) > FARTHEST:
                break
    raise InputError(
        f"this accountant finds no noise that brings epsilon down to {target:g}; "
        "use accountant 'pld', or ask for a larger epsilon"
    )


def _between(low: tuple[float, float], high: tuple[float, float], *, bisect: bool) -> float:
    """Where the line through both points crosses zero; the middle now and then, to be sure."""
    if bisect or not math.isfinite(low[1] - high[1]):
        return (low[0] + high[0]) / 2
    return low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])


def rounds_within(curve: Callable[[int], float], target: float, guess: int, most: int) -> int:
    """The largest count with curve(count) <= target, at most ``most``; curve rises with count."""
    good, bad = 0, most + 1
    count = min(max(guess, 1), most)
    while bad - good > 1:
        value = curve(count)
        if value <= target:
            good = count
        else:
            bad = count
        ahead = max(count + 1, math.ceil(count * 1.5)) if bad > most else (good + bad) // 2
        if 0 < value < math.inf and bad - good > 8:
            # ε grows between √T and T: overshoot a little, so that both ends close in.
            ahead = round(count * (target / value) ** 1.5)
            margin = max(1, (bad - good) // 16)
            ahead = min(max(ahead, good + margin), bad - margin)
        count = min(max(ahead, good + 1), bad - 1)
    return good
