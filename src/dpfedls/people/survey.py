"""The units of the inputs, measured: what people are asked in the first rounds.

Where no public samples show the units, everybody in a cohort answers questions about their inputs:
is the largest column around 1, and is no value beyond 1? Then, if need be: how large are the values
of each column, where is their middle, how far are they from it? An answer is a vector of norm 1 at
most. Times the clip norm, it is clipped, summed and released as an update is, with the same noise,
so such a round costs what every round costs. ``Question.answers`` sees people's inputs; all else
here is made from releases, and public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from dpfedls.component import Component, check_types
from dpfedls.errors import InputError, require_not_negative, require_positive
from dpfedls.gaussian import Release
from dpfedls.people.units import AS_GIVEN, CONSTANT, LARGE, SMALL, AsGiven, Standardised, extent
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.stall import Votes
from dpfedls.server import ServerState

Known = dict[str, Tensor]
Kind: TypeAlias = Literal["largest", "size", "centre", "spread"]
_KINDS: tuple[Kind, ...] = ("largest", "size", "centre", "spread", "centre", "spread")
# Means and distances are asked for twice, the second time from nearer by.
_SIZE, _CENTRE, _CENTRE_AGAIN = 1, 2, 4
_LEAST, _BINS = -7, 24  # bins of sizes: each a factor of 4, from 4^−7 up; the last has no end
_WIDE = 3  # bins that nearly all values of a column lie in
_ABOVE = 9  # the first bin of values that are not usual, from 16 on
_MOST = 100  # of a person's samples: more would cost time and hardly change the answer
_ALIKE = 10.0  # by how much columns of one kind differ in size
_REACH = 2.0  # the middle is looked for so many sizes around
_LEAST_THERE, _LEAST_SPREAD = 0.1, 1e-3
_RARE = 0.125  # of the reach, that is a quarter of the size: the least scale of usual columns
_CUT = 0.75  # of the reach: beyond it a mean, asked for at once, is of values that were cut
_NEAR = 0.25  # of the reach: a column whose values are nearer together is looked at again
_DONE = len(_KINDS)


class Measured(Component, frozen=True, tag="measured"):
    """Units of inputs by what people answer, with noise, in the first rounds of the plan.

    In ``first`` rounds everybody says whether their largest column is far above 1, or below. If for
    most it is neither, units are usual, and people train. Otherwise, or if ``centre`` or ``scale``
    is set, or ``within`` and most people have no value beyond 1, the next ``sizes`` rounds ask how
    large values are: per column, or, if ``columns`` is false, for all columns at once, which
    tolerates more noise. Up to four times ``later`` rounds then ask for means and scales, or, if
    units are usual and only ``centre`` is set, for means alone. With ``at_once`` these are asked
    for without asking for sizes first. People train as soon as units are known.
    """

    first: int  # rounds that ask for the largest column
    sizes: int  # rounds that ask how large values are
    later: int = 0  # rounds of each question after it
    columns: bool = True  # each by itself
    centre: bool = False  # subtract the means of usual inputs, too
    scale: bool = False  # and divide them by their scales
    within: bool = False  # both, if they lie within -1 and 1
    at_once: bool = False  # means alone are asked for without sizes

    def __post_init__(self) -> None:
        check_types(self, "standardise.")
        require_positive("standardise.first", self.first, "one at least asks")
        require_positive("standardise.sizes", self.sizes, "one at least asks how large values are")
        require_not_negative("standardise.later", self.later, "0 asks for sizes alone")
        if self.at_once and (self.scale or not self.centre):
            raise InputError(
                "standardise.at_once asks for the means of usual inputs alone: give "
                "standardise.centre = true and leave standardise.scale out, or leave at_once out"
            )
        asked = [name for name in ("centre", "scale", "within") if getattr(self, name)]
        if asked and not (self.later and self.columns):
            raise InputError(
                f"standardise.{asked[0]} asks for means, of each column: give "
                "standardise.later, at least 1, and leave columns = false out"
            )

    @property
    def most(self) -> int:
        """How many rounds ask at most."""
        return self.first + self.sizes + 4 * self.later

    def require_room(self, plan: PrivacyPlan) -> None:
        """Refuse a plan that leaves no round to train in, or bounds no answer."""
        if self.most >= plan.rounds:
            raise InputError(
                f"standardise asks in up to {self.most} rounds (first, sizes and four times "
                f"later), and plan.rounds = {plan.rounds} leaves none to train: ask in fewer"
            )
        if math.isinf(plan.clipping.start):
            raise InputError(
                "clip_norm = inf bounds no answer, so units cannot be asked for; leave standardise "
                "out, or give a finite clip_norm"
            )


@dataclass(frozen=True, eq=False)
class Question:
    """What a round asks: public, and the same for everybody."""

    kind: Kind
    columns: int
    together: bool  # one answer for all columns
    channels: bool  # columns are a convolution's channels
    mean: Tensor
    reach: Tensor
    asked: Tensor  # which columns

    @property
    def length(self) -> int:
        """How many numbers an answer has."""
        if self.kind == "largest":
            return 4
        sizes = _BINS if self.together else self.columns * _BINS
        return sizes if self.kind == "size" else int(self.asked.sum())

    def answers(self, features: Tensor) -> Tensor:
        """One person's answer: norm 1 at most, whatever the inputs are."""
        values = features[:_MOST].detach().double()
        if len(values) == 0:
            return torch.zeros(self.length, dtype=torch.float64, device=features.device)
        if self.channels:
            values = values.transpose(0, 1).flatten(1).T
        values = values.reshape(-1, self.columns)
        if self.kind == "largest":
            largest, typical = extent(values)
            within = bool(values.abs().max() <= 1)
            said = [largest > LARGE, largest <= LARGE and typical < SMALL]
            said = [*said, not any(said) and within, not any(said) and not within]
            return torch.tensor(said, device=values.device).double()
        if self.kind == "size":
            values = values.reshape(-1, 1) if self.together else values
            bins = (values.abs().log2() / 2 - _LEAST).floor().clamp(max=_BINS - 1)  # zeros: none
            found = torch.stack([(bins == k).double().mean(0) for k in range(_BINS)], dim=1)
            return found.flatten() / math.sqrt(len(found))  # shares, of sum 1 in a column
        away = (values - self.mean.to(values)) / self.reach.to(values)
        if self.kind == "spread":  # clients without samples must not count as far away
            away = away.abs() / 2
        found = away.clamp(-1, 1).mean(0)[self.asked.to(values.device)]
        return found / math.sqrt(max(1, len(found)))


@dataclass(frozen=True, eq=False)
class Survey:
    """The server's side: which question is next, and what follows from the answers."""

    asks: Measured
    units: Standardised  # of the model; its mean and scale are to be found
    noise: float  # standard deviation in each number of a round's mean answer

    def start(self) -> Known:
        """What is known before the first round: nothing."""
        ones = torch.ones(self._width)
        return {
            "question": torch.zeros(2),  # which one, and how often it was asked
            "rounds": torch.zeros(1),  # that have asked
            "answers": torch.zeros(0),  # the sum of those to this question
            "usual": torch.zeros(1),  # whether most people's largest column is around 1
            "within": torch.zeros(1),  # and most have no value beyond 1
            "there": torch.ones(1),  # the share of people who have samples
            "mean": 0 * ones,
            "reach": ones,
            "scale": ones,
            "asked": 0 * ones,
        }

    def question(self, known: Known) -> Question | None:
        """What the next round asks; None once units are known."""
        at = int(known["question"][0])
        if at == _DONE:
            return None
        how = (_KINDS[at], self._width, not self.asks.columns, self._channels)
        return Question(*how, known["mean"], known["reach"], known["asked"] > 0)

    def after(self, state: ServerState, release: Release) -> ServerState:
        """The state after a round that asked.

        The model waits; once units are known, it is the same one for inputs in these.
        """
        known = self.following(state.survey, release)
        params = self.found(known).outward(state.params)
        votes = state.votes and Votes(params, params)
        state = replace(state, params=params, average=params, votes=votes)
        return replace(state, round=state.round + 1, survey=known)

    def following(self, known: Known, release: Release) -> Known:
        """After a round; what it released is the noisy mean answer, times the clip norm."""
        at, count = known["question"].int().tolist()
        total = release.value.cpu() / release.clip_norm + (known["answers"] if count else 0)
        known = known | {"answers": total, "question": torch.tensor([at, count + 1.0])}
        known["rounds"] = known["rounds"] + 1
        if count + 1 < self._rounds(known):
            return known
        found = self._answered(known, at, total.double() / (count + 1), count + 1)
        return found | {"answers": torch.zeros(0)}

    def found(self, known: Known) -> AsGiven:
        """The units in which people train: as given until all is known, or if they are usual."""
        mean, scale = known["mean"], known["scale"]
        unchanged = not mean.any() and bool((scale == 1).all())
        if int(known["question"][0]) < _DONE or unchanged:
            return AS_GIVEN
        like = self.units.mean
        return replace(self.units, mean=mean.view_as(like), scale=scale.view_as(like))

    def _rounds(self, known: Known) -> int:
        """How often the question is asked: of fewer columns there is less noise in each."""
        at = int(known["question"][0])
        if at <= _SIZE:
            return self.asks.sizes if at else self.asks.first
        return math.ceil(self.asks.later * float(known["asked"].sum()) / self._width)

    def _answered(self, known: Known, at: int, answer: Tensor, rounds: int) -> Known:
        if at == 0:
            usual = bool(answer[2:].sum() > answer[:2].sum())
            within = usual and bool(answer[2] > answer[3])
            noise, there = math.sqrt(len(answer) / rounds) * self.noise, float(answer.sum())
            there = 1.0 if there > 1 - 3 * noise else max(there, _LEAST_THERE)
            heard = known | {"usual": torch.ones(1) * usual, "within": torch.ones(1) * within}
            heard |= {"there": torch.ones(1) * there}
            if usual and not (self._asks_of_usual(heard) and self._may_centre):
                return self._next(heard, _DONE)
            if usual and self.asks.at_once and not self._scales_usual(heard):
                each = torch.ones(self._width)
                reach = each if within else _REACH * each
                return self._next(heard, _CENTRE, asked=each, reach=reach)
            return self._next(heard, _SIZE)
        if at == _SIZE:
            return self._sized(known, answer, self.noise / math.sqrt(rounds))
        asked, kind = known["asked"] > 0, _KINDS[at]
        width = math.sqrt(max(1, int(asked.sum()))) / float(known["there"])
        answer, noise = width * answer, width * self.noise / math.sqrt(rounds)
        mean, reach, scale = (known[name].double() for name in ("mean", "reach", "scale"))
        if kind == "centre":
            # Less where noise may be all there is (James and Stein's factor).
            sure = (1 - (noise / answer).square()).clamp(min=0).nan_to_num(0.0)
            mean[asked] += reach[asked] * answer * sure
            if bool((scale == 1).all()):  # sizes are usual, and means are all we want
                cut = torch.zeros(self._width)
                cut[asked] = (answer.abs() > _CUT + 2 * noise).float()
                if self.asks.at_once and at == _CENTRE and not known["within"] and cut.any():
                    rest = (LARGE - _REACH) * torch.ones(self._width)
                    return self._next(known, _CENTRE_AGAIN, mean=mean, reach=rest, asked=cut)
                return self._next(known, _DONE, mean=mean)
            far = True
        else:
            # 1.25 mean distances are the deviation of a normal law. No less than noise can tell,
            # nor than single precision can beside the mean.
            least = max(noise, _LEAST_SPREAD)
            scale[asked] = 1.25 * reach[asked] * (2 * answer).clamp(min=2 * least)
            scale = torch.maximum(scale, CONSTANT * mean.abs())
            far = bool((scale < _NEAR * reach)[asked].any())  # then a mean is not known well
            if known["usual"]:  # what is rare is not made large
                scale, far = torch.maximum(scale, _RARE * reach), False
            reach = torch.minimum(reach, _REACH * scale)
        made = {"mean": mean.float(), "reach": reach.float(), "scale": scale.float()}
        return known | made | {"question": torch.tensor([at + 1.0 if far else _DONE, 0.0])}

    def _sized(self, known: Known, answer: Tensor, noise: float) -> Known:
        """From the shares of values in each bin: sizes, and whether any are out of the usual."""
        columns = len(answer) // _BINS
        shares, noise = math.sqrt(columns) * answer.view(columns, _BINS), math.sqrt(columns) * noise
        each, sure, rest = _sizes(shares, noise, self.asks.columns)
        if self.asks.within and known["within"]:  # what noise hides is no larger than the others
            each, rest = torch.where(sure, each.clamp(max=1.0), 1.0), None
        known_sizes: list[float] = [*each[sure].tolist(), *([] if rest is None else [rest])]
        largest = max(known_sizes, default=1.0)
        each, sure = each.expand(self._width), sure.expand(self._width)
        sure_of = {"reach": _REACH * each, "asked": sure}
        centre = self._may_centre and bool(sure.any())
        typical = math.hypot(*known_sizes) / math.sqrt(max(1, len(known_sizes)))
        unusual = largest > LARGE or (known_sizes and typical < SMALL)
        usual, at = bool(known["usual"]) or not unusual, _CENTRE
        sure_of["usual"] = torch.ones(1) * usual
        # Rare columns that are as large as the others, pixels say: of one kind, with one scale.
        one_kind = rest is not None and float(each.max() / each.min()) <= _ALIKE
        if one_kind and rest is not None:
            each = torch.full_like(each, rest)
        if usual:
            at = _CENTRE if centre and self._asks_of_usual(known) else _DONE
            scale = self._scales_usual(known) and at == _CENTRE and not one_kind
            each = each if scale else torch.ones(1)
        elif one_kind or not centre:
            at = _DONE
        return self._next(known, at, scale=each.expand(self._width), **sure_of)

    def _next(self, known: Known, at: int, **found: Tensor) -> Known:
        changed = {name: values.clone().float() for name, values in found.items()}
        return known | changed | {"question": torch.tensor([float(at), 0.0])}

    def _asks_of_usual(self, known: Known) -> bool:
        return self.asks.centre or self._scales_usual(known)

    def _scales_usual(self, known: Known) -> bool:
        return self.asks.scale or (self.asks.within and bool(known["within"]))

    @property
    def _may_centre(self) -> bool:
        return self.units.bias is not None and self.asks.later > 0

    @property
    def _width(self) -> int:
        return self.units.mean.numel()

    @property
    def _channels(self) -> bool:
        return self.units.layout.shapes[self.units.layout.names.index(self.units.weight)][2:] != ()


class _Sizes(NamedTuple):
    each: Tensor  # of every column; 1 where nothing is known
    sure: Tensor  # which columns are known by their own values
    rest: float | None  # the size of the others together; None where noise hides it


def _sizes(shares: Tensor, noise: float, apart: bool) -> _Sizes:
    """The usual size of each column's values, by their shares in bins; or of all together."""
    windows = shares.unfold(1, _WIDE, 1).sum(2)
    each = torch.stack(
        [_size(row, int(best)) for row, best in zip(shares, windows.argmax(1), strict=True)]
    )
    # The largest of so many noisy numbers is rarely above this.
    clear = math.sqrt(2 * math.log(windows.numel())) + 0.5
    sure = (windows.amax(1) > clear * math.sqrt(_WIDE) * noise) & apart
    if sure.all():
        return _Sizes(each, sure, None)
    others = shares[~sure]
    rest, alike = _together(others.mean(0), noise / math.sqrt(len(others)))
    rest = rest if apart or alike else None  # several kinds, and nobody knows which is which
    each[~sure] = 1.0 if rest is None else rest
    if sure.any():  # better too small than too large
        large = others[:, _ABOVE:].sum(1) > max(0.5, 3 * math.sqrt(_BINS - _ABOVE) * noise)
        each[~sure] = torch.where(large, each[sure].max(), each[~sure])
    return _Sizes(each, sure, rest)


def _together(shares: Tensor, noise: float) -> tuple[float | None, bool]:
    """The largest usual size among columns together; and whether few values are smaller."""
    windows, error = shares.unfold(0, _WIDE, 1).sum(1), math.sqrt(_WIDE) * noise
    clear = (windows > 4 * error).nonzero().flatten().tolist()
    if not clear:
        return None, False
    near = range(max(0, clear[-1] - _WIDE + 1), clear[-1] + 1)
    top = max(near, key=lambda b: float(windows[b]))
    below = float(shares[:top].sum())
    alike = below <= 0.5 * float(windows[top]) + 2 * math.sqrt(max(1, top)) * noise
    return float(_size(shares, top)), alike


def _size(shares: Tensor, window: int) -> Tensor:
    """The geometric mean of the sizes in a window, by what is left of them above noise."""
    weights = shares[window : window + _WIDE].clamp(min=0)
    middles = _LEAST + 0.5 + window + torch.arange(_WIDE).double()
    return 4 ** ((weights * middles).sum() / weights.sum().clamp(min=1e-12))
