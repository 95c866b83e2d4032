"""How far the server goes along a direction: the server rate η_g and its schedule."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from msgspec.structs import replace

from dpfedls.component import Component, check_types
from dpfedls.errors import require_finite
from dpfedls.privacy.plan import PrivacyPlan

Schedule: TypeAlias = Literal["constant", "root", "linear"]  # 1, √(1 − t/T) and 1 − t/T


class NoiseRate(Component, frozen=True, tag="noise"):
    """A server rate chosen so that the run adds noise of this standard deviation to each weight.

    Without noise it is ``at_most``.
    """

    noise: float  # standard deviation in a weight after the whole run
    at_most: float = 1.0  # the largest server rate

    def __post_init__(self) -> None:
        check_types(self, "server_rate.")
        require_finite("server_rate.noise", self.noise, "0.05 suits most models")
        require_finite("server_rate.at_most", self.at_most, "the paper uses 1")


ServerRate: TypeAlias = float | NoiseRate


def scaled(rate: ServerRate, by: float) -> ServerRate:
    """A rate that may be so many times as large; the noise that it adds is as before."""
    return replace(rate, at_most=by * rate.at_most) if isinstance(rate, NoiseRate) else by * rate


def step_length(
    rate: ServerRate, schedule: Schedule, plan: PrivacyPlan, clip_norm: float, t: int
) -> float:
    """What round t's direction is multiplied by."""
    if isinstance(rate, NoiseRate):
        gathered = noise_gathered(schedule, plan, clip_norm)
        rate = min(rate.at_most, rate.noise / gathered) if gathered > 0 else rate.at_most
    return rate * (1 - t / plan.rounds) ** {"constant": 0, "root": 0.5, "linear": 1}[schedule]


def noise_gathered(schedule: Schedule, plan: PrivacyPlan, clip_norm: float) -> float:
    """The noise's standard deviation in a weight after all rounds, at server rate 1."""
    t = plan.rounds  # Σ of the schedule's squares:
    squares = {"constant": t, "root": (t + 1) / 2, "linear": (t + 1) * (2 * t + 1) / (6 * t)}
    return plan.noise_stddev(clip_norm) / plan.expected_cohort * math.sqrt(squares[schedule])
