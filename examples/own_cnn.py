"""A network of one's own on arrays with user ids: python examples/own_cnn.py."""

import numpy as np
import torch
from torch import nn

import dpfedls

rng = np.random.default_rng(0)
labels = rng.integers(0, 4, 3000)  # where in the image the bright square is
images = rng.normal(0, 0.5, (3000, 1, 12, 12)).astype(np.float32)
for image, label in zip(images, labels, strict=True):
    top, left = 6 * (label // 2), 6 * (label % 2)
    image[0, top : top + 6, left : left + 6] += 0.6
users = rng.integers(0, 150, 3000)  # whose image it is: any labels, in any order

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.GroupNorm(2, 8),
    nn.GELU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(8 * 36, 4),
)
trained = users < 120
result = dpfedls.train(
    model=net,
    clients=dpfedls.ClientData.from_arrays(
        images[trained], labels[trained], users[trained], most_samples=30
    ),
    epsilon=4.0,
    test=(images[~trained], labels[~trained]),  # people who are not trained on
)
print(f"accuracy {result.accuracy:.2f} at ε = {result.epsilon:.2f}, δ = {result.plan.delta:.2g}")
