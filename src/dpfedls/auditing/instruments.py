"""Instruments between the parts of a real run: they record what passes and change nothing.

The one exception is what the audit is about: a hostile person, whose update is made up, or who
never answers. Everything recorded here is sensitive; an audit runs on data that may be looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from dpfedls.clipping import Bound
from dpfedls.denoising import AnyCallable, Memory, denoise, first_memory, look_ahead
from dpfedls.engine import Engine
from dpfedls.gaussian import Release
from dpfedls.local_sgd import LocalUpdate
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.people.rescale import Rescaling
from dpfedls.people.survey import Survey
from dpfedls.randomness import Noise, RandomStreams
from dpfedls.sampling import Indices
from dpfedls.server import ServerState
from dpfedls.simulation import Simulation

Planted = Callable[[Indices, int, float, Updates], Updates]
"""``planted(clients, round, clip norm, updates)``: what the clients send instead."""


def as_trained(clients: Indices, round_: int, norm: float, updates: Updates) -> Updates:
    """Nothing planted."""
    return updates


@dataclass
class Round:
    """What was seen of one round, on both sides of the privacy boundary."""

    number: int
    cohort: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    bounds: list[Bound] = field(default_factory=list)  # as handed to the engine
    keys: list[int] = field(default_factory=list)
    start: Vector | None = None  # the weights from which clients trained
    clients: list[Indices] = field(default_factory=list)  # as they reached the local update
    paces: list[float] = field(default_factory=list)  # with which they were to train
    rows: list[Updates] = field(default_factory=list)  # what they sent, unclipped
    losses: list[tuple[Vector, Indices, torch.Tensor]] = field(default_factory=list)  # for votes
    totals: list[Vector] = field(default_factory=list)  # what left the engine
    draws: list[torch.Tensor] = field(default_factory=list)  # standard normals
    nonces: list[str] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)  # what the ledger lacked at each draw, or ""
    releases: list[Release] = field(default_factory=list)
    after: ServerState | None = None  # the round, once it is over

    @property
    def trained(self) -> Indices:
        """Everybody who trained, in the order in which they did."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self.clients])


@dataclass
class Record:
    """All rounds of a run; ``look`` is asked whether a round is paid for when noise is drawn."""

    look: Callable[[list[str]], str] = lambda nonces: ""
    rounds: dict[int, Round] = field(default_factory=dict)
    current: int = 0
    crash: int | None = None  # the round that stops, once, when its noise is to be drawn
    lost: dict[int, str] = field(default_factory=dict)  # the nonce of what was paid for then

    def __getitem__(self, t: int) -> Round:
        return self.rounds.setdefault(t, Round(t))

    def __iter__(self) -> Any:
        return iter([self.rounds[t] for t in sorted(self.rounds)])

    def end(self, after: ServerState) -> None:
        """What a round has come to, if there was one."""
        if after.round - 1 in self.rounds:
            self.rounds[after.round - 1].after = after

    def keep(self, release: Release) -> None:
        """A copy of what the round released: who is given it may change it."""
        kept = replace(release, value=release.value.clone())
        self[self.current].releases.append(kept)

    def crash_if_due(self, seen: Round) -> None:
        """Stop as a power cut would: the round is paid for and nothing of it is released."""
        if self.crash == seen.number:
            self.crash = None
            self.lost[seen.number] = seen.nonces[-1]
            del self.rounds[seen.number]
            raise Crash


class Crash(BaseException):
    """No Exception, so that nobody catches it by chance."""


@dataclass(frozen=True)
class ObservedUpdate:
    """The real local update, with what was planted in it."""

    inner: LocalUpdate
    record: Record
    planted: Planted

    def __call__(
        self,
        params: Vector,
        clients: Indices,
        round_: int,
        key: int,
        radius: float,
        pace: float = 1.0,
    ) -> Updates:
        made = self.inner(params, clients, round_, key, radius, pace)
        rows = self.planted(clients, self.record.current, radius, made)
        seen = self.record[self.record.current]
        seen.clients.append(clients.copy())
        seen.paces.append(pace)
        seen.rows.append(rows.clone())
        return rows


@dataclass(frozen=True)
class ObservedLosses:
    """The real losses of each client, by which it votes."""

    inner: Callable[[Vector, Indices], torch.Tensor]
    record: Record

    def __call__(self, params: Vector, clients: Indices) -> torch.Tensor:
        losses = self.inner(params, clients)
        asked = (params.clone(), clients.copy(), losses.clone())
        self.record[self.record.current].losses.append(asked)
        return losses


@dataclass(frozen=True)
class ObservedEngine(Engine):
    """The real engine; ``absent`` never answer, as if the cohort had been drawn without them."""

    record: Record = field(default_factory=Record)
    absent: tuple[int, ...] = ()
    planted: Planted = as_trained

    def in_units(self, units: Any) -> Engine:
        made = super().in_units(units)
        if made is self:
            return self
        return replace(
            made,
            update=ObservedUpdate(made.update, self.record, self.planted),
            losses=made.losses and ObservedLosses(made.losses, self.record),
        )

    def answers(self, params: Vector, block: Indices, bound: Bound) -> Updates:
        seen, made = self.record[self.record.current], super().answers(params, block, bound)
        rows = self.planted(block, seen.number, bound.norm, made)
        seen.clients.append(block.copy())
        seen.rows.append(rows.clone())
        return rows

    def clipped_total(
        self, params: Vector, cohort: Indices, round_: int, key: int, bound: Bound
    ) -> Vector:
        self.record.current = round_
        seen = self.record[round_]
        seen.cohort, seen.start = cohort.copy(), params.clone()
        seen.bounds.append(bound)
        seen.keys.append(key)
        here = cohort[~np.isin(cohort, self.absent)]
        total = super().clipped_total(params, here, round_, key, bound)
        seen.totals.append(total.clone())
        return total


@dataclass(frozen=True)
class ObservedStreams:
    """The real streams; when noise is drawn, the ledger is looked at."""

    inner: RandomStreams
    record: Record

    def sampling(self, round_: int) -> np.random.Generator:
        return self.inner.sampling(round_)

    def shuffling(self, round_: int) -> int:
        return self.inner.shuffling(round_)

    def noise(self, round_: int) -> Noise:
        real, seen = self.inner.noise(round_), self.record[round_]

        def draw(dim: int, device: torch.device) -> torch.Tensor:
            seen.paid.append(self.record.look(seen.nonces))
            self.record.crash_if_due(seen)
            drawn = real(dim, device)
            seen.draws.append(drawn.clone())  # the server scales it in place
            return drawn

        return draw

    def nonce(self, round_: int, device: torch.device) -> str:
        nonce = self.inner.nonce(round_, device)
        self.record[round_].nonces.append(nonce)
        return nonce


class ObservedDenoiser:
    """The real denoiser; the releases it was given are kept."""

    def __init__(self, inner: AnyCallable, record: Record) -> None:
        self.inner, self.record = inner, record

    def start(self, layout: Layout) -> Memory:
        return first_memory(self.inner, layout)

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        self.record.keep(release)
        return denoise(self.inner, release, memory)

    def ahead(self, params: Vector, memory: Memory) -> Vector:
        return look_ahead(self.inner, params, memory)


@dataclass(frozen=True, eq=False)
class ObservedSurvey(Survey):
    """The real questions; the releases that answer them are kept."""

    record: Record = field(default_factory=Record)

    def following(self, known: Memory, release: Release) -> Memory:
        self.record.keep(release)
        return super().following(known, release)


@dataclass(frozen=True, eq=False)
class ObservedRescaling(Rescaling):
    """The real questions of the last rounds; the releases that answer them are kept."""

    record: Record = field(default_factory=Record)

    def rescaled(self, params: Vector, release: Release) -> Vector:
        self.record.keep(release)
        return super().rescaled(params, release)


def observed(
    simulation: Simulation, record: Record, planted: Planted = as_trained, absent: Any = ()
) -> Simulation:
    """The same simulation with an instrument at every joint."""
    engine = simulation.engine
    parts = {part.name: getattr(engine, part.name) for part in fields(engine)}
    watched = ObservedEngine(
        **parts
        | {
            "update": ObservedUpdate(engine.update, record, planted),
            "losses": engine.losses and ObservedLosses(engine.losses, record),
            "record": record,
            "absent": tuple(absent),
            "planted": planted,
        }
    )
    server = simulation.server
    server = replace(
        server,
        denoiser=ObservedDenoiser(server.denoiser, record),
        survey=server.survey and ObservedSurvey(**vars(server.survey), record=record),
        rescaling=server.rescaling and ObservedRescaling(**vars(server.rescaling), record=record),
    )
    return replace(
        simulation,
        engine=watched,
        server=server,
        streams=ObservedStreams(simulation.streams, record),
    )
