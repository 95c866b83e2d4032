"""Federated averaging in pfl with a smoothed aggregate. pip install pfl (tried with 0.6.0)."""
# pyright: reportMissingImports=false, reportArgumentType=false

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

from dpfedls import LaplacianSmoothing
from dpfedls.adapters.pfl import Denoising

torch.manual_seed(0)
x = torch.randn(200, 10, 64)
y = (x.sum(dim=-1) > 0).long()
people = [PyTorchTensorDataset((x[k], y[k]), user_id=str(k)) for k in range(200)]
data = FederatedDataset(people.__getitem__, get_user_sampler("random", range(200)))
net = torch.nn.Linear(64, 2)
net.loss = lambda x, y: torch.nn.functional.cross_entropy(net(x), y)  # what pfl calls
net.metrics = lambda x, y: {}
mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(0.5, 1.0))
FederatedAveraging().run(
    NNAlgorithmParams(15, 15, 20, 0),
    SimulatedBackend(
        training_data=data,
        val_data=data,
        postprocessors=[Denoising(LaplacianSmoothing()), mechanism],  # the server goes backwards
    ),
    PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
    NNTrainHyperParams(local_num_epochs=2, local_learning_rate=0.1, local_batch_size=5),
    send_metrics_to_platform=False,
)
print(f"accuracy {(net(x).argmax(dim=-1) == y).float().mean():.2f}")
