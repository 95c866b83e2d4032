"""DP-SGD by hand, one person a sample: clip, add noise, and let the optimiser see it smoothed."""

import torch

from dpfedls import LaplacianSmoothing
from dpfedls.adapters.torch import denoise_gradients

CLIP, NOISE, BATCH = 1.0, 1.0, 50


def noisy_gradient(model: torch.nn.Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of clipped gradients, with noise, divided by the expected batch."""
    total = torch.zeros_like(model.weight)
    for one, target in zip(x, y, strict=True):
        loss = torch.nn.functional.cross_entropy(model(one[None]), target[None])
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        total += gradient * (CLIP / gradient.norm()).clamp(max=1)
    return (total + NOISE * CLIP * torch.randn_like(total)) / BATCH


torch.manual_seed(0)
signal = torch.sin(torch.linspace(0, 6.28, 64))
x = torch.randn(1000, 1) * signal + 0.5 * torch.randn(1000, 64)
y = (x @ signal > 0).long()
model = torch.nn.Linear(64, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
denoise_gradients(optimizer, LaplacianSmoothing(strength=1.0), NOISE * CLIP / BATCH)
for _ in range(20):
    batch = torch.rand(1000) < BATCH / 1000  # Poisson sampling
    model.weight.grad = noisy_gradient(model, x[batch], y[batch])
    optimizer.step()
print(f"accuracy {(model(x).argmax(dim=1) == y).float().mean():.2f}")
