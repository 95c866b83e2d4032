"""The models of the paper's experiments, written so that they vmap over clients."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from dpfedls.engine.positions import LastPosition
from dpfedls.engine.positions import PositionEmbedding as PositionEmbedding
from dpfedls.engine.recurrence import GRU as GRU
from dpfedls.engine.recurrence import LSTM
from dpfedls.engine.residual import Residual as Residual


def logistic_regression(inputs: int, classes: int) -> nn.Module:
    """Multinomial logistic regression on flat inputs."""
    return nn.Linear(inputs, classes)


def mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class Standardise(nn.Module):
    """A first layer that takes images as bytes and takes out each colour's mean and deviation.

    So people's images need a quarter of the memory of floats. It has neither parameters nor
    buffers, and its numbers are plain, so that a step copies nothing to the device.
    """

    any_leading_dimensions = True  # so it serves many clients at once as it is

    def __init__(self, mean: tuple[float, ...], stddev: tuple[float, ...]) -> None:
        super().__init__()
        self.mean, self.stddev = mean, stddev

    def forward(self, images: Tensor) -> Tensor:
        """(…, colours, height, width) of 0 to 255, whatever their dtype, to floats around zero."""
        colours = zip(images.unbind(dim=-3), self.mean, self.stddev, strict=True)
        return torch.stack([(colour / 255 - m) / s for colour, m, s in colours], dim=-3)


def cnn(width: float = 1.0) -> nn.Sequential:
    """The SVHN network of Section 6.2: 3,431,754 parameters at width 1, for 3×32×32 images."""
    c1, c2, h1, h2 = (max(1, round(size * width)) for size in (64, 128, 384, 192))
    return nn.Sequential(
        nn.Conv2d(3, c1, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(c1, c2, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(c2 * 8 * 8, h1),
        nn.ReLU(),
        nn.Linear(h1, h2),
        nn.ReLU(),
        nn.Linear(h2, 10),
    )


def character_lstm(
    characters: int, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> nn.Sequential:
    """Predict the next character: embedding, LSTM layers, a linear layer on the last state."""
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(characters, embedding),
            lstm=LSTM(embedding, hidden, layers),
            last=LastPosition(),
            output=nn.Linear(hidden, characters),
        )
    )
