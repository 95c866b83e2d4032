"""pfl 0.6: its FederatedAveraging with a central Gaussian mechanism, by its public interface.

Less work than ours: no projection within a client's training (the finished update is clipped), no
shuffling, no smoothing. Several processes: torchrun -m runners.pfl_runner.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import Tensor, nn
from workloads import WORKLOADS, Workload, draw

from runners.measure import Rounds, parser
from runners.models import make_model


class Classifier(nn.Module):
    """A model with the two methods that pfl calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """The mean over a batch."""
        return nn.functional.cross_entropy(self.model(features), targets)

    def metrics(self, features: Tensor, targets: Tensor) -> dict:
        """Nothing: pfl always evaluates in its first round, and the others do not."""
        return {}


class Timer(TrainingProcessCallback):
    """pfl calls back after every round."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """One process speaks for all."""
        if pytorch_ops.distributed.global_rank == 0:
            self.rounds.done()
        return False, Metrics()


def users(workload: Workload) -> FederatedDataset:
    """Everybody's data in memory, made once; pfl draws users with replacement."""
    features, targets = (torch.from_numpy(array) for array in draw(workload))
    people = [
        PyTorchTensorDataset(pair, user_id=str(j))
        for j, pair in enumerate(zip(features, targets, strict=True))
    ]
    return FederatedDataset(people.__getitem__, get_user_sampler("random", range(workload.clients)))


def main() -> None:
    """Time the rounds of a workload."""
    given = parser().parse_args()
    torch.set_num_threads(1)  # several processes are how pfl uses several cores
    np.random.seed(0)  # all processes must draw the same cohort
    workload = WORKLOADS[given.workload]
    rounds = Rounds(given.rounds or workload.rounds)
    classifier = Classifier(make_model(workload.model))
    mechanism = GaussianMechanism(workload.clip_norm, workload.noise_multiplier)
    population = users(workload)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds.total,
            evaluation_frequency=rounds.total,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(
            training_data=population,
            val_data=population,
            postprocessors=[WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)],
        ),
        PyTorchModel(
            classifier,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch,
        ),
        callbacks=[Timer(rounds)],
        send_metrics_to_platform=False,
    )
    if torch.distributed.is_initialized():  # or one process may abort while the other leaves
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        os._exit(0)  # everything is said; on the usual way out a thread of its own may abort it


if __name__ == "__main__":
    main()
