"""dpfedls, by its public interface."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from workloads import WORKLOADS, Workload, draw

from dpfedls import ClientData, FixedSizeSampling, LaplacianSmoothing, LocalSGD, PrivacyPlan
from dpfedls.engine import choose
from dpfedls.engine.ranks import find_workers
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.server import Server, ServerState
from dpfedls.simulation import Simulation
from dpfedls.tasks import models
from runners.measure import Rounds, parser
from runners.models import gelu_mlp, make_model, resnet8, transformer


def _character_gru() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(80, 8),
            gru=models.GRU(8, 64),
            last=models.LastPosition(),
            output=nn.Linear(64, 80),
        )
    )


_MAKERS = {
    "logistic": lambda: models.logistic_regression(784, 10),
    "mlp": lambda: models.mlp(784, 252, 10),
    "cnn": lambda: models.cnn(1 / 8),
    "lstm": lambda: models.character_lstm(80, hidden=64),
    "gelu-mlp": gelu_mlp,
    "resnet-8": lambda: resnet8(models.Residual),
    "transformer": lambda: transformer(models.PositionEmbedding, models.LastPosition),
    "gru": _character_gru,
}


def our_model(name: str) -> nn.Module:
    """Our twin of the peers' model: same parameters, same first weights."""
    model = _MAKERS[name]()
    model.load_state_dict(make_model(name).state_dict())
    return model


def people(features: np.ndarray, targets: np.ndarray) -> ClientData:
    """Everybody's samples, as drawn for all systems."""
    clients, samples = targets.shape
    return ClientData(
        torch.from_numpy(features).flatten(0, 1),
        torch.from_numpy(targets).flatten(),
        np.arange(clients) * samples,
        np.full(clients, samples),
    )


def federation(
    workload: Workload, model: nn.Module, data: ClientData, rounds: int
) -> tuple[Simulation, ServerState]:
    """The workload as a simulation, and the state to begin from."""
    plan = PrivacyPlan(
        sampler=FixedSizeSampling(cohort=workload.cohort),
        num_clients=workload.clients,
        rounds=rounds,
        clip_norm=workload.clip_norm,
        noise_multiplier=workload.noise_multiplier,
    )
    local = LocalSGD(
        epochs=workload.epochs,
        batch_size=workload.batch,
        learning_rate=workload.learning_rate,
        projection="step",
    )
    denoiser = LaplacianSmoothing(strength=workload.strength)
    server = Server(plan, denoiser, Layout.of(model), MemoryLedger(plan))
    simulation = Simulation(choose(model, data, local), server, SeededStreams(0))
    return simulation, server.start(server.layout.read(model))


def main() -> None:
    """Time the rounds of a workload."""
    settings = parser()
    settings.add_argument("--threads", type=int, help="of torch; without it, as torch comes")
    given = settings.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    workload = WORKLOADS[given.workload]
    rounds = Rounds(given.rounds or workload.rounds)
    model, data = our_model(workload.model), people(*draw(workload))
    simulation, state = federation(workload, model, data, rounds.total)
    with find_workers() as workers:  # alone, or under torchrun
        engine = replace(simulation.engine, ranks=workers)
        for _ in replace(simulation, engine=engine).run(state):
            if workers.rank == 0:
                rounds.done()


if __name__ == "__main__":
    main()
