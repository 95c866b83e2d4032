"""A pre-trained backbone that stays as it is, and a private head: examples/frozen_backbone.py."""

import torch
from torch import nn

import dpfedls

torch.manual_seed(0)
backbone = nn.Sequential(  # in real life: a network trained on public images
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
)
backbone.requires_grad_(False).eval()  # constants: neither trained nor noised
model = nn.Sequential(backbone, nn.Flatten(), nn.Linear(256, 3))

y = torch.randint(3, (200, 12))
x = torch.randn(200, 12, 3, 8, 8) + torch.eye(3)[y][..., None, None]  # the label is a colour
result = dpfedls.train(
    model=model,
    clients=list(zip(x[:150], y[:150], strict=True)),
    epsilon=4.0,
    local=dpfedls.LocalSGD(steps=5, learning_rate=0.1),  # a head learns fast
    test=(x[150:].flatten(0, 1), y[150:].flatten()),
)
print(f"accuracy {result.accuracy:.2f} at ε = {result.epsilon:.2f}; {result.engine}")
