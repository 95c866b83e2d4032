"""Algorithm 1 on one machine: begin reading here.

sample ─▶ train ─▶ clip ─▶ sum ─┃─▶ add noise ─▶ Release ─▶ denoise ─▶ step
└──────── sensitive ───────────┘┃└──────────── public from here on ────────┘
                         privacy boundary
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from dpfedls.engine import Engine
from dpfedls.errors import InputError
from dpfedls.randomness import RandomStreams
from dpfedls.server import Server, ServerState

log = logging.getLogger("dpfedls")


@dataclass(frozen=True)
class Simulation:
    """A federation on one machine: what people do with their data, and the server."""

    engine: Engine  # holds people's data, and trains a cohort as fast as model and machine allow
    server: Server
    streams: RandomStreams

    def __post_init__(self) -> None:
        plan, people = self.server.plan, self.engine.data.num_clients
        if people != plan.num_clients:
            raise InputError(
                f"the plan is for {plan.num_clients} clients, but there is data of {people}; the "
                "guarantee counts people, so make the two agree"
            )
        if not plan.is_private:
            log.warning("noise_multiplier is 0: this is federated averaging and it is NOT private")

    def run_round(self, state: ServerState) -> ServerState:
        """One round of DP-Fed-LS: sample, train, clip, sum; then noise, denoise, step."""
        server, streams, t = self.server, self.streams, state.round
        cohort = server.plan.sampler.sample(server.plan.num_clients, streams.sampling(t))
        engine = self.engine.in_units(server.units(state))
        total = engine.clipped_total(
            server.broadcast(state), cohort, t, streams.shuffling(t), server.bound(state)
        )
        nonce = streams.nonce(t, total.device)
        return server.finish_round(state, total, streams.noise(t), nonce)

    def run(self, state: ServerState) -> Iterator[ServerState]:
        """The rounds that are left, one state after each."""
        while state.round < self.server.plan.rounds:
            state = self.run_round(state)
            yield state
