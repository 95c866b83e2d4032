"""How long an update may be: one norm for the whole run, or one that follows a quantile.

The norm of a round is public, and so is all it is made from. A client's *contribution* is its
clipped update and, where the norm adapts, one more coordinate that says whether the update was
inside the ball. Both are released together, by one Gaussian mechanism.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from msgspec import UNSET, UnsetType

from dpfedls.component import Component, check_types
from dpfedls.errors import InputError, require_finite, require_positive, require_share


class Observed(NamedTuple):
    """What the release of a round tells about its clip norm: public, like the norm itself."""

    norm: float
    inside: float | None  # the noisy share of updates inside; None where a vote took its place
    noise: float  # the standard deviation of the noise in every coordinate of the release
    t: int  # rounds that trained before this one
    rounds: int  # that train in the whole run


class FixedClipping(Component, frozen=True, tag="fixed"):
    """The same norm in every round; infinity is no clipping, and then there is no privacy."""

    norm: float

    def __post_init__(self) -> None:
        check_types(self, "clip_norm.")
        require_positive("clip_norm", self.norm, "it bounds what one client can contribute")
        if self.norm < _LEAST:
            raise InputError(
                f"clip_norm = {self.norm:g} is below what float32 can tell apart; give at least "
                f"{_LEAST:g}"
            )

    @property
    def start(self) -> float:
        """The norm of the first round."""
        return self.norm

    @property
    def quantile(self) -> float:
        """The share of updates that should be inside the ball; of no effect here."""
        return 0.5

    def contribution(self, norm: float) -> float:
        """The ℓ2 bound on what one client adds to the sum, in a round of that norm."""
        return norm

    def indicator(self, norm: float) -> float:
        """The weight of the coordinate that says who was inside; 0 where there is none."""
        return 0.0

    def following(
        self, seen: Observed, exceeded: float = 0.0, weights: float = math.inf
    ) -> tuple[float, float]:
        """The norm of the next round, and what its floor hangs on.

        ``exceeded`` is the largest norm so far that too many updates were seen to exceed, and
        ``weights`` the norm of the model after this round.
        """
        return self.norm, exceeded

    def waits(self, seen: Observed) -> bool:
        """Whether the model stays as it was after this round, since the norm is not found yet."""
        return False


class AdaptiveClipping(Component, frozen=True, tag="adaptive"):
    """A norm that follows a quantile of the updates' lengths (Andrew et al. 2021).

    *Update.* After a round whose noisy share of updates inside the ball was b, the norm becomes
    C · exp(−η_t · s), where s is b − quantile, scaled to run from −½ (nobody inside) to ½
    (everybody), and η_t = (0.2 + 4 · 0.7^a) ÷ (1 + 4d²), d being the standard deviation of the
    noise in b: long steps first, short ones where the share is in doubt. a is the round number
    minus the rounds that it takes from the start to the present norm at 0.3 · 4.2 ÷ (1 + 4d²) per
    round on a log scale, and at least 0. So a start 100 times too small or too large is corrected
    in about ten rounds, and steps stay long until the norm has converged, however far that is.

    *Rounds that wait.* What is released before the norm is found is mostly noise, and the model
    should not learn meanwhile who is frequent. So in the first twentieth of the rounds it stays as
    it was after a round in which far too many updates were inside: at quantile 0.5 more than three
    quarters, and by two standard deviations of the noise. With a floor, and a noise of at most 0.05
    in the share, it stays as it was in all rounds of the first fortieth.

    *Floor.* The norm keeps at least the share floor^(t ÷ T) of the largest norm that too many
    updates were seen to exceed, by two standard deviations. Where one class is frequent, most
    people are soon recognised and their updates nearly vanish; clipped to the length of those,
    everybody would count the same, and the rare ones would be outvoted.

    *Upper limit.* With ``of_weights`` the norm is at most that share of the norm of the model's
    weights, or its start if that is more: where a loss has the units of its targets, a long update
    of a network makes the next one longer, and the norm would follow without end.

    Guarantees: update and indicator together have norm at most 1.01 · C, whatever the update is,
    so the pair costs what the update alone would cost with 1 % less noise.
    """

    start: float = 1.0
    quantile: float = 0.5
    # Unset and not None: a plan without it is written as it was before there was one.
    of_weights: float | UnsetType = UNSET  # the most it may be, as a share of the weights' length
    floor: float | UnsetType = UNSET  # the least at last, as a share of what most once exceeded

    def __post_init__(self) -> None:
        check_types(self, "clip_norm.")
        require_finite("clip_norm.start", self.start, "it is the norm of the first round")
        if not 0 < self.quantile < 1:
            raise InputError(
                f"clip_norm.quantile must be between 0 and 1, got {self.quantile:g}; at 0.5 half "
                "of the updates are clipped"
            )
        if self.of_weights is not UNSET:
            require_finite("clip_norm.of_weights", self.of_weights, "0.5 suits a network")
        if self.floor is not UNSET:
            require_share(
                "clip_norm.floor",
                self.floor,
                "0.4 keeps the updates of rare classes from being outvoted",
            )

    def contribution(self, norm: float) -> float:
        return _JOINT * norm

    def indicator(self, norm: float) -> float:
        # times 1 − quantile or −quantile; with w the larger, √(C² + (w · indicator)²) = 1.01 · C.
        return math.sqrt(_JOINT**2 - 1) * norm / max(self.quantile, 1 - self.quantile)

    def following(
        self, seen: Observed, exceeded: float = 0.0, weights: float = math.inf
    ) -> tuple[float, float]:
        norm, inside, doubt = seen.norm, seen.inside, self._doubt(seen)
        if inside is None:
            return norm, exceeded
        if self.floor is not UNSET and inside + 2 * doubt < self.quantile:
            exceeded = max(exceeded, norm)
        # A share is between 0 and 1; noise may say otherwise, and then means no more than that.
        away = min(max(inside, 0.0), 1.0) - self.quantile
        scaled = away / (2 * (1 - self.quantile) if away > 0 else 2 * self.quantile)
        sure = 1 / (1 + 4 * doubt**2)
        # Rounds since it arrived: the way so far took some, at three fifths of the longest steps.
        since = seen.t - abs(math.log(norm / self.start)) / (0.3 * (_PACE + _HASTE) * sure)
        pace = (_PACE + _HASTE * _CALM ** max(0.0, since)) * sure
        moved = norm * math.exp(-pace * scaled)
        least = 0.0 if self.floor is UNSET else self.floor ** (seen.t / seen.rounds) * exceeded
        moved = max(moved, min(norm, least))  # it ends a fall, and never makes the norm longer
        most = _MOST if self.of_weights is UNSET else max(self.start, self.of_weights * weights)
        return min(max(moved, _LEAST), most, _MOST), exceeded

    def waits(self, seen: Observed) -> bool:
        done, doubt = (seen.t + 1) / seen.rounds, self._doubt(seen)
        if seen.inside is None or done > _SEARCH:
            return False
        if self.floor is not UNSET and doubt <= _SURE and done <= _SEARCH / 2:
            return True
        return seen.inside > self.quantile + max(2 * doubt, (1 - self.quantile) / 2)

    def _doubt(self, seen: Observed) -> float:
        """The standard deviation of the noise in the share of updates inside."""
        return seen.noise / self.indicator(seen.norm)


Clipping: TypeAlias = FixedClipping | AdaptiveClipping

_JOINT = 1.01
_PACE, _HASTE, _CALM = 0.2, 4.0, 0.7
_SEARCH, _SURE = 0.05, 0.05  # of the rounds; a doubt in the share inside
_LEAST, _MOST = 1e-12, 1e12  # what float32 tells apart
