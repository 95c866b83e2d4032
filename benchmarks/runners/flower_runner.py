"""Flower's simulation: FedAvg in its wrapper for central differential privacy, on Ray actors.

Clients train as in the plain loop, with its projection. Less work than ours: no smoothing.
"""

from __future__ import annotations

import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from workloads import WORKLOADS

from runners import flower_client
from runners.measure import Rounds, parser
from runners.models import make_model


class Timed(DifferentialPrivacyServerSideFixedClipping):
    """The strategy, saying when a round has ended."""

    rounds: Rounds

    def aggregate_train(self, server_round, replies):
        """The last act of a round: there is no evaluation."""
        answers = list(replies)
        arrays, metrics = super().aggregate_train(server_round, answers)
        if arrays is None or len(answers) != self.num_sampled_clients:
            # Flower would go on, and a round without work is quick.
            raise RuntimeError(f"{len(answers)} answers, or an error among them")
        self.rounds.done()
        return arrays, metrics


def main() -> None:
    """Time the rounds of a workload."""
    settings = parser()
    settings.add_argument("--cpus", type=int, default=1, help="for each actor")
    given = settings.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)  # it writes a line a client
    workload = WORKLOADS[given.workload]
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        averaging = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,  # or the first cohort is a share of who is there yet
            min_available_nodes=workload.clients,
        )
        strategy = Timed(averaging, workload.noise_multiplier, workload.clip_norm, workload.cohort)
        model = make_model(workload.model)
        strategy.rounds = Rounds(given.rounds or workload.rounds)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord([p.detach().numpy() for p in model.parameters()]),
            num_rounds=strategy.rounds.total,
            train_config=ConfigRecord({"workload": workload.name}),
        )

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=workload.clients,
        backend_config={"client_resources": {"num_cpus": given.cpus, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
