"""The one-shot canary audit: a whole training run, in which some clients send random directions.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar 2023, "One-shot Empirical Privacy Estimation for
Federated Learning". A random direction that nobody sent has with anything a cosine that is close
to N(0, 1/d); those that were sent lean towards what was released. How far tells what the run leaks
about people who are no worse than these: usually far less than the worst case that ε covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch
from jaxtyping import Float
from scipy import stats

from dpfedls.auditing.bounds import gdp_epsilon
from dpfedls.denoising import AnyCallable, Memory, denoise, first_memory, look_ahead
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.local_sgd import LocalUpdate
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.sampling import Indices
from dpfedls.server import ServerState
from dpfedls.simulation import Simulation

CONFIDENCE = 0.99
FEWEST = 10
_LENGTH = 1000.0  # in clip norms, so that clipping matters
_COORDINATES = 2**26  # of all canaries together: 256 MiB


class CanaryAudit(msgspec.Struct, frozen=True):
    """What the canaries show; ε of the whole run, at the plan's δ."""

    seen: str  # what the attacker looks at
    canaries: int
    dim: int
    cosine_mean: float
    cosine_stddev: float  # 1/√d where nothing is remembered
    mu: float
    mu_lower: float
    epsilon: float
    epsilon_lower: float
    confidence: float


@dataclass(frozen=True)
class WithCanaries:
    """The first clients send their direction, far too long; all others train."""

    inner: LocalUpdate
    directions: Float[torch.Tensor, "canaries dim"]

    def __call__(
        self,
        params: Vector,
        clients: Indices,
        round_: int,
        key: int,
        radius: float,
        pace: float = 1.0,
    ) -> Updates:
        updates = self.inner(params, clients, round_, key, radius, pace)
        planted = np.flatnonzero(clients < len(self.directions))
        updates[planted] = self.directions[clients[planted]] * (_LENGTH * radius)
        return updates


@dataclass(frozen=True)
class Summing:
    """The real denoiser, which also adds up the releases it was given."""

    inner: AnyCallable
    total: list[Vector] = field(default_factory=list)

    def start(self, layout: Layout) -> Memory:
        return first_memory(self.inner, layout)

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        value = release.value.double()
        self.total[:] = [self.total[0] + value if self.total else value]
        return denoise(self.inner, release, memory)

    def ahead(self, params: Vector, memory: Memory) -> Vector:
        return look_ahead(self.inner, params, memory)


def audit_canaries(
    simulation: Simulation,
    state: ServerState,
    canaries: int,
    seed: int = 0,
) -> list[CanaryAudit]:
    """Run the simulation with canaries in the place of its first clients; one run is enough.

    The attacker sees the final model, as in the paper, or all releases, where denoising hides
    nothing: each is public.
    """
    plan, dim = simulation.server.plan, len(state.params)
    canaries = min(canaries, _COORDINATES // dim)
    check_canaries(plan, canaries)
    directions = random_directions(canaries, dim, seed).to(state.params)
    engine = simulation.engine
    engine = replace(engine, update=WithCanaries(engine.update, directions))
    releases = Summing(simulation.server.denoiser)
    server = replace(simulation.server, denoiser=releases)
    watched, end = replace(simulation, engine=engine, server=server), state
    while end.round < plan.rounds:
        end = watched.run_round(end)
    inward = server.coordinates.inward  # canaries point in the coordinates in which people train
    ways = {
        "all releases": releases.total[0],
        "the final model": (inward(end.params) - inward(state.params)).double(),
    }
    return [
        judge_cosines(cosines(directions.double(), moved), dim, plan.target_delta, seen=seen)
        for seen, moved in ways.items()
    ]


def check_canaries(plan: PrivacyPlan, canaries: int) -> None:
    """Refuse so few that they show nothing, and more than there are clients to replace."""
    if not FEWEST <= canaries <= plan.num_clients:
        raise InputError(
            f"canaries must be {FEWEST} to {plan.num_clients} (they take the place of clients), "
            f"got {canaries}; 100 will do, or 0 for none"
        )


def random_directions(count: int, dim: int, seed: int) -> Float[torch.Tensor, "count dim"]:
    """Unit vectors, uniform on the sphere, from a stream that no run uses."""
    rng = np.random.default_rng([seed, 0xCA])
    drawn = torch.from_numpy(rng.standard_normal((count, dim), dtype=np.float32))
    return drawn / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)


def cosines(directions: Updates, moved: Vector) -> np.ndarray:
    """Of each direction with the way things went."""
    return (directions @ moved / torch.linalg.vector_norm(moved).clamp(min=1e-300)).cpu().numpy()


def judge_cosines(found: np.ndarray, dim: int, delta: float, seen: str = "") -> CanaryAudit:
    """A normal fit of the cosines against N(0, 1/d), the law of a direction that nobody sent.

    μ is the mean in units of the larger of the two deviations. Its lower limit takes Student's t
    for the mean and χ² for the deviation, each failing with half of 1 − ``CONFIDENCE``.
    """
    fails, free = (1 - CONFIDENCE) / 2, len(found) - 1
    mean, spread, null = float(found.mean()), float(found.std(ddof=1)), 1 / math.sqrt(dim)
    least = mean - float(stats.t.ppf(1 - fails, free)) * spread / math.sqrt(len(found))
    widest = max(null, spread * math.sqrt(free / float(stats.chi2.ppf(fails, free))))
    mu, lower = max(0.0, mean / max(null, spread)), max(0.0, least / widest)
    return CanaryAudit(
        seen=seen,
        canaries=len(found),
        dim=dim,
        cosine_mean=mean,
        cosine_stddev=spread,
        mu=mu,
        mu_lower=lower,
        epsilon=gdp_epsilon(mu, delta),
        epsilon_lower=gdp_epsilon(lower, delta),
        confidence=CONFIDENCE,
    )
