"""A loss and a metric of one's own, here for regression: python examples/regression.py."""

import torch
from torch import Tensor, nn

import dpfedls


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number per sample."""
    return nn.functional.smooth_l1_loss(outputs.squeeze(-1), targets, reduction="none")


def median_error(outputs: Tensor, targets: Tensor) -> float:
    """One number for all samples."""
    return float((outputs.squeeze(-1) - targets).abs().median())


torch.manual_seed(0)
x = torch.rand(500, 20, 5)
y = 3 * x[..., 0] - 2 * x[..., 1] + 0.1 * torch.randn(500, 20)
result = dpfedls.train(
    model=nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)),
    clients=list(zip(x[:450], y[:450], strict=True)),
    epsilon=2.0,
    loss=huber,
    metrics={"median error": median_error},
    test=(x[450:].flatten(0, 1), y[450:].flatten()),
)
print({name: round(value, 3) for name, value in result.metrics.items()})
