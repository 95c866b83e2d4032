"""Algorithm 1 on one machine: begin reading here.

sample ─▶ train ─▶ clip ─▶ sum ─┃─▶ add noise ─▶ Release ─▶ denoise ─▶ step
└──────── sensitive ───────────┘┃└──────────── public from here on ────────┘
                         privacy boundary
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfedls.checks import check_model, check_samples
from dpfedls.clipping import clipped_sum
from dpfedls.denoising import Denoiser, Identity
from dpfedls.engine.choose import fastest_update
from dpfedls.engine.ranks import ALONE, Workers
from dpfedls.engine.threads import one_torch_thread
from dpfedls.errors import InputError, require_positive
from dpfedls.local_sgd import LocalSGD, LocalUpdate, Loss, cross_entropy
from dpfedls.metrics import evaluate
from dpfedls.parameters import Layout
from dpfedls.population import People, people
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import RandomStreams, SeededStreams
from dpfedls.samples import as_samples
from dpfedls.sampling import Indices
from dpfedls.server import Server, ServerState

log = logging.getLogger("dpfedls")


@dataclass(frozen=True)
class Simulation:
    """A federation on one machine: people's data, what each does with it, and the server."""

    data: People
    local_update: LocalUpdate
    server: Server
    streams: RandomStreams
    block_size: int  # how many clients train at once: bounds memory and changes nothing else
    workers: Workers = ALONE  # who else trains a part of each cohort

    def run_round(self, state: ServerState) -> ServerState:
        """One round of DP-Fed-LS: sample, train, clip, sum; then noise, denoise, step."""
        plan, t = self.server.plan, state.round
        cohort = plan.sampler.sample(plan.num_clients, self.streams.sampling(t))
        order = self.streams.shuffling(t)
        total = torch.zeros_like(state.params, dtype=torch.float64)
        with one_torch_thread():  # local updates bring threads of their own
            for block in self._blocks(self.workers.share(cohort, self.data.sizes[cohort])):
                updates = self.local_update(state.params, block, t, order)
                total += clipped_sum(updates, plan.clip_norm)
        total = self.workers.total(total, t)
        return self.server.finish_round(state, total, self.streams.noise(t), self.streams.nonce(t))

    def run(self, state: ServerState) -> Iterator[ServerState]:
        """The rounds that are left, one state after each."""
        while state.round < self.server.plan.rounds:
            state = self.run_round(state)
            if not torch.isfinite(state.params).all():
                raise InputError(
                    f"the model of round {state.round} is not finite: training diverged; lower the "
                    "learning rate or server_rate"
                )
            yield state

    def _blocks(self, cohort: Indices) -> Iterator[Indices]:
        """The cohort in blocks; clients of like size share one, so that little is padded."""
        by_size = cohort[np.argsort(self.data.sizes[cohort], kind="stable")]
        for start in range(0, len(by_size), self.block_size):
            yield by_size[start : start + self.block_size]


@dataclass(frozen=True)
class RoundRecord:
    """What is known after a round; made from public values and the test set alone."""

    round: int
    epsilon: float  # spent so far, at the plan's delta
    accuracy: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Result:
    """A trained model and what it cost."""

    model: nn.Module
    plan: PrivacyPlan
    history: list[RoundRecord]

    @property
    def accuracy(self) -> float | None:
        """Of the model on the test set."""
        return self.history[-1].accuracy

    @property
    def loss(self) -> float | None:
        """Of the model on the test set."""
        return self.history[-1].loss

    @property
    def epsilon(self) -> float:
        """What was spent at ``plan.delta``; infinite where no noise was added."""
        return self.history[-1].epsilon

    def privacy_statement(self) -> dict[str, Any]:
        """What was promised to whom, under which assumptions, as plain data."""
        from dpfedls.privacy.statement import statement

        return statement(self.plan, mode="simulation")


def train(
    *,
    model: nn.Module,
    clients: Any,
    plan: PrivacyPlan,
    local: LocalSGD,
    denoiser: Denoiser | None = None,
    server_rate: float = 1.0,
    averaging: float = 0.0,
    loss: Loss = cross_entropy,
    test: Any = None,
    seed: int = 0,
    device: str = "cpu",
    block_size: int | None = None,
) -> Result:
    """Train a copy of ``model`` on the clients' data under the plan, in simulation."""
    data = people(clients)
    ledger = MemoryLedger(plan)
    model = trainable_copy(model, device)
    server = Server(plan, denoiser or Identity(), Layout.of(model), ledger, server_rate, averaging)
    simulation = federate(model, data, server, local, SeededStreams(seed), loss, block_size)
    if test is not None:
        test = as_samples(test, "test")
        check_samples(model, test, "test", loss)
    history = []
    for state in simulation.run(server.start(server.layout.read(model))):
        server.layout.write(state.average, model)
        score = evaluate(model, test, loss) if test is not None else ()
        history.append(RoundRecord(state.round, ledger.epsilon(), *score))
    return Result(model, plan, history)


def trainable_copy(model: nn.Module, device: str) -> nn.Module:
    """A copy on the device, refused by name where it holds what must not be trained privately."""
    check_model(model)
    return copy.deepcopy(model).to(find_device(device))


def federate(
    model: nn.Module,
    data: People,
    server: Server,
    local: LocalSGD,
    streams: RandomStreams,
    loss: Loss = cross_entropy,
    block_size: int | None = None,
) -> Simulation:
    """The simulation of these parts, once it is checked that they fit together."""
    plan = server.plan
    if data.num_clients != plan.num_clients:
        raise InputError(
            f"the plan is for {plan.num_clients} clients, but there is data of {data.num_clients}; "
            "the guarantee counts people, so make the two agree"
        )
    if not plan.is_private:
        log.warning("noise_multiplier is 0: this is federated averaging and it is NOT private")
    data = data.to(next(model.parameters()).device)
    check_samples(model, data, "clients", loss)
    update, at_once = fastest_update(model, loss, server.layout, data, local, plan.clip_norm)
    block_size = at_once if block_size is None else block_size
    require_positive("block_size", block_size, "it is how many clients train at once")
    return Simulation(data, update, server, streams, block_size)


def find_device(name: str) -> torch.device:
    """The torch device of that name, if it is there."""
    try:
        if name == "meta":
            raise RuntimeError("holds no numbers")
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        there = ["cpu"] + ["cuda"] * torch.cuda.is_available()
        raise InputError(
            f"device {name!r} is not there; choose one of: {', '.join(there)}"
        ) from error
