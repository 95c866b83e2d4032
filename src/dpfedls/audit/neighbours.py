"""Two neighbouring populations with a worst-case person, fed through the real round.

Everything from the sampler to the release is the code that trains; only the local updates are
made up, because an audit must also stand for people who send whatever they like.

The population size N is public and part of the plan, so under add-or-remove-one the absent person
is one of the N who never answers: the same cohorts without them. Under replace-one somebody who
sends the opposite stands in their place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from dpfedls.engine import Engine
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.people.clients import ClientData
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import Noise, RandomStreams
from dpfedls.sampling import FixedSizeSampling, Indices, PoissonSampling
from dpfedls.server import Server, ServerState
from dpfedls.simulation import Simulation

CANARY = 0  # the person in question
HUGE = 1e6  # in clip norms: what is not clipped shows
LAYOUT = Layout(("a", "b", "c", "d"), ((3, 2), (5,), (2, 2, 2), (4,)))
_FIRSTS = [0, 6, 11, 19]  # the first coordinate of every tensor
_BLOCK = 32
_SAMPLES = 1000  # the canary's; the others have one each, so weighting by samples shows


class PresentPoisson(PoissonSampling, tag="poisson", frozen=True):
    """Poisson sampling, given that the canary takes part: the others are independent of it."""

    def sample(self, num_clients: int, rng: np.random.Generator) -> Indices:
        return np.union1d(super().sample(num_clients, rng), [CANARY])


class AbsentPoisson(PoissonSampling, tag="poisson", frozen=True):
    """The same cohorts without the canary."""

    def sample(self, num_clients: int, rng: np.random.Generator) -> Indices:
        return np.setdiff1d(super().sample(num_clients, rng), [CANARY])


class PresentFixed(FixedSizeSampling, tag="fixed", frozen=True):
    """Fixed-size sampling, given that the canary takes part: its m − 1 companions are uniform."""

    def sample(self, num_clients: int, rng: np.random.Generator) -> Indices:
        cohort = super().sample(num_clients, rng)
        if CANARY not in cohort:
            cohort[rng.integers(len(cohort))] = CANARY
        return np.sort(cohort)


@dataclass(frozen=True)
class RecordingServer(Server):
    """The real server, which also keeps the sums it was given."""

    totals: list[Vector] = field(default_factory=list)

    def finish_round(
        self, state: ServerState, total: Vector, noise: Noise, nonce: str
    ) -> ServerState:
        self.totals.append(total.clone())
        return super().finish_round(state, total, noise, nonce)


@dataclass(frozen=True)
class Recorder:
    """A denoiser that changes nothing and keeps the releases it saw."""

    releases: list[Release] = field(default_factory=list)

    def __call__(self, release: Release) -> Vector:
        self.releases.append(release)
        return release.value


@dataclass(frozen=True)
class Recorded:
    """One round from inside and outside the privacy boundary."""

    total: Vector  # sensitive: before the noise
    release: Release
    state: ServerState
    ledger: MemoryLedger


class Neighbours:
    """A population with the canary and one without, alike in everything else."""

    def __init__(self, plan: PrivacyPlan, seed: int = 0) -> None:
        self.plan = plan
        self.direction = torch.zeros(LAYOUT.dim)
        self.direction[_FIRSTS] = 0.5  # of norm one, and with a share in every tensor
        rng = torch.Generator().manual_seed(seed)
        # The others' updates are longer than the clip norm, and orthogonal to the direction.
        others = torch.randn(plan.num_clients, LAYOUT.dim, generator=rng)
        others[:, _FIRSTS] = 0
        self.others = others * plan.clipping.start
        sizes = np.ones(plan.num_clients, dtype=np.int64)
        sizes[CANARY] = _SAMPLES
        samples = torch.zeros(int(sizes.sum()), 1)
        self.data = ClientData(samples, samples[:, 0], np.cumsum(sizes) - sizes, sizes)

    def worst(self) -> Vector:
        """The update that is furthest from all others' along the direction."""
        return self.direction * HUGE * self.plan.clipping.start

    def run(
        self, update: Vector, *, present: bool, round_: int, streams: RandomStreams
    ) -> Recorded:
        """One real round in which the canary sends ``update``, or is absent or replaced."""
        plan = msgspec.structs.replace(self.plan, sampler=self._sampler(present))
        sent = update if present else -self.worst()
        ledger, recorder = MemoryLedger(plan), Recorder()
        server = RecordingServer(plan, recorder, LAYOUT, ledger)
        engine = Engine("audit", "updates are made up", self._updates(sent), self.data, _BLOCK)
        start = replace(server.start(torch.zeros(LAYOUT.dim)), round=round_)
        state = Simulation(engine, server, streams).run_round(start)
        return Recorded(server.totals[0], recorder.releases[0], state, ledger)

    def _sampler(self, present: bool) -> PoissonSampling | FixedSizeSampling:
        sampler = self.plan.sampler
        if isinstance(sampler, FixedSizeSampling):
            return PresentFixed(cohort=sampler.cohort)
        return (PresentPoisson if present else AbsentPoisson)(rate=sampler.rate)

    def _updates(self, sent: Vector):
        def local_update(
            params: Tensor, clients: Indices, round_: int, key: int, radius: float
        ) -> Updates:
            updates = self.others[torch.from_numpy(clients)]
            updates[torch.from_numpy(clients == CANARY)] = sent
            return updates

        return local_update
