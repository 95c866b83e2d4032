"""What the server does once the cohort has answered; simulation and deployment both end here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from msgspec import structs

from dpfedls.clipping import Bound
from dpfedls.denoising import AnyCallable, Memory, denoise, first_memory, look_ahead
from dpfedls.errors import InputError, require_share
from dpfedls.gaussian import Release, gaussian_release
from dpfedls.parameters import PLAIN, Coordinates, Layout, Total, Vector
from dpfedls.privacy.clipping import Observed
from dpfedls.privacy.ledger import Ledger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.stall import Votes, reference_model, votes_after
from dpfedls.randomness import Noise
from dpfedls.stepping import Schedule, ServerRate, scaled, step_length


@dataclass(frozen=True)
class ServerState:
    """All that one round hands to the next, and all of it public."""

    round: int  # how many rounds have been released
    params: Vector  # w^t
    average: Vector  # Σ a_s w^s so far, the output
    clip_norm: float  # of the next round
    memory: Memory = field(default_factory=dict)  # the denoiser's
    votes: Votes | None = None  # on whether learning stalls
    survey: Memory = field(default_factory=dict)  # what is known of the units of inputs
    exceeded: float = 0.0  # the largest clip norm that too many updates were seen to exceed

    @property
    def asked(self) -> int:
        """How many rounds so far asked about units of inputs instead of training."""
        return int(self.survey["rounds"]) if self.survey else 0

    def to(self, device: torch.device | str) -> ServerState:
        """The same state on another device; what is known of units stays where it is."""
        memory = {name: tensor.to(device) for name, tensor in self.memory.items()}
        votes = self.votes and self.votes.to(device)
        params, average = self.params.to(device), self.average.to(device)
        return replace(self, params=params, average=average, memory=memory, votes=votes)


@dataclass(frozen=True)
class Server:
    """The server's part of Algorithm 1.

    ``averaging`` r in [0, 1] weighs the iterates by a_t ∝ r^−t in the output: 0 is the last
    iterate, 1 the uniform average, r = 1 − μ_σ η̃ K / 2 the weights of the strongly convex theorem
    (Theorem 4), and 0.9, say, an exponential moving average. It is post-processing.
    """

    plan: PrivacyPlan
    denoiser: AnyCallable
    layout: Layout
    ledger: Ledger
    rate: ServerRate = 1.0  # η_g
    averaging: float = 0.0
    schedule: Schedule = "constant"
    shorten: float | None = None  # local trainings by this, once learning stalls (privacy.stall)
    coordinates: Coordinates = PLAIN  # of broadcasts and releases; states are for inputs as given
    survey: Any = None  # asks for the units of inputs in the first rounds (people.survey)
    rescaling: Any = None  # and for the scale of the scores in the last ones (people.rescale)

    def __post_init__(self) -> None:
        if isinstance(self.denoiser, type) or not callable(self.denoiser):
            raise InputError(
                f"denoiser = {self.denoiser!r} cannot be called with a release; give for example "
                "dpfedls.LaplacianSmoothing(strength=1.0)"
            )
        require_share("averaging", self.averaging, "0 is the last iterate, 1 the uniform average")

    def start(self, params: Vector) -> ServerState:
        """The state before the first round."""
        state = ServerState(
            round=0,
            params=params,
            average=params,
            clip_norm=self.plan.clipping.start,
            memory=first_memory(self.denoiser, self.layout),
            votes=None if self.shorten is None else Votes(params, params),
            survey=self.survey.start() if self.survey else {},
        )
        return state.to(params.device)

    def units(self, state: ServerState) -> Coordinates:
        """The coordinates in which this round's clients train."""
        return self.survey.found(state.survey) if self.survey else self.coordinates

    def trainings(self, state: ServerState) -> int:
        """How many rounds of the plan train, as far as is known."""
        return self._trained_until - state.asked

    def rescales(self, state: ServerState) -> bool:
        """Whether the next round asks for the scale of the scores."""
        return bool(self.rescaling) and state.round >= self._trained_until

    def bound(self, state: ServerState) -> Bound:
        """What a client may contribute to the next round."""
        norm, clipping = state.clip_norm, self.plan.clipping
        asked = (norm, clipping.indicator(norm), clipping.quantile)
        if self.rescales(state):
            return Bound(*asked, question=self.rescaling.question)
        if question := self.survey and self.survey.question(state.survey):
            return Bound(*asked, question=question)
        compared = reference_model(state.votes, self.plan, state.round - state.asked)
        compared = compared if compared is None else self.units(state).inward(compared)
        pace = 1 / self._longer(state.votes)
        return Bound(*asked, earlier=compared, pace=pace, asked=state.asked)

    def broadcast(self, state: ServerState) -> Vector:
        """The weights from which the next round's clients start, or which they judge."""
        if self.rescales(state):
            return self.units(state).inward(state.average)
        return look_ahead(self.denoiser, self.units(state).inward(state.params), state.memory)

    def step(self, state: ServerState) -> float:
        """What the next round's direction is multiplied by."""
        rate = scaled(self.rate, self._longer(state.votes))
        trains = structs.replace(self.plan, rounds=max(1, self.trainings(state)))
        t = state.round - state.asked
        return step_length(rate, self.schedule, trains, state.clip_norm, t)

    def finish_round(
        self, state: ServerState, total: Total, noise: Noise, nonce: str
    ) -> ServerState:
        """From the sum of what clients contributed to the next model."""
        plan, t = self.plan, state.round
        self.ledger.spend(plan.round_event, t, nonce)  # spend first, release second
        release = gaussian_release(  # ── privacy boundary ──
            total, plan, state.clip_norm, t, noise, self.layout
        )
        if (bound := self.bound(state)).question is not None:
            asks = self.rescaling if self.rescales(state) else self.survey
            return asks.after(state, release)
        release = replace(release, step=self.step(state))
        direction, memory = denoise(self.denoiser, release, state.memory)  # costs no privacy
        params = state.params + release.step * self.units(state).outward(direction)
        return self._stepped(state, release, params, memory, voted=bound.earlier is not None)

    def _stepped(
        self, state: ServerState, release: Release, params: Vector, memory: Memory, voted: bool
    ) -> ServerState:
        """The next state: the model unless it waits, its average, what votes say, the clip norm."""
        clipping, t = self.plan.clipping, state.round - state.asked
        seen = Observed(
            norm=state.clip_norm,
            inside=None if voted else release.inside,
            noise=release.noise_stddev,
            t=t,
            rounds=self.trainings(state),
        )
        if clipping.waits(seen):
            params, memory = state.params, state.memory
        votes = votes_after(state.votes, self.plan, t, release.inside, params)
        weights = float(self.units(state).inward(params).norm(dtype=torch.float64))
        norm, exceeded = clipping.following(seen, state.exceeded, weights)
        shorter = self._longer(state.votes) / self._longer(votes)  # with the updates
        return replace(
            state,
            round=state.round + 1,
            params=params,
            average=state.average.lerp(params, newest_weight(self.averaging, t + 1)),
            clip_norm=shorter * norm,
            memory=memory,
            votes=votes,
            exceeded=shorter * exceeded,
        )

    @property
    def _trained_until(self) -> int:
        """The round before which training ends."""
        return self.plan.rounds - (self.rescaling.asks.rounds if self.rescaling else 0)

    def _longer(self, votes: Votes | None) -> float:
        """By how much server steps are longer since learning stalled, as clients' are shorter."""
        return self.shorten if self.shorten and votes and votes.stalled else 1.0


def newest_weight(r: float, t: int) -> float:
    """The share of w^t in Σ_{s≤t} a_s w^s ÷ Σ_{s≤t} a_s, a_s ∝ r^−s: so no history is kept."""
    if r == 0:
        return 1.0
    if r == 1:
        return 1.0 / (t + 1)
    return float((1 - r) / -np.expm1((t + 1) * np.log(r)))
