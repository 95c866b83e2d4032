"""The models of the paper's experiments, written so that they vmap over clients."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpfedls.recurrence import recurrence


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
    """The SVHN network of Section 5.2: 3,431,754 parameters at width 1, for 3×32×32 images."""
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


class LSTM(nn.Module):
    """nn.LSTM(batch_first=True) with its cell written out: same parameters, same outputs.

    Torch has no batching rule for the fused kernel, so it cannot train many clients at once.
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        bound = 1 / math.sqrt(hidden)
        for layer in range(layers):
            width = inputs if layer == 0 else hidden
            for name, shape in (
                (f"weight_ih_l{layer}", (4 * hidden, width)),
                (f"weight_hh_l{layer}", (4 * hidden, hidden)),
                (f"bias_ih_l{layer}", (4 * hidden,)),
                (f"bias_hh_l{layer}", (4 * hidden,)),
            ):
                parameter = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
                self.register_parameter(name, parameter)

    def forward(self, sequence: Tensor) -> Tensor:
        """Hidden states of the last layer, one for each position."""
        states = sequence.transpose(0, 1)
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                getattr(self, f"{kind}_l{layer}")
                for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            # The inputs' share of the gates needs no recurrence: one product for all positions.
            driven = nn.functional.linear(states, weight_ih)
            states = recurrence(driven, weight_hh, bias_ih + bias_hh)
        return states.transpose(0, 1)


class CharacterLSTM(nn.Module):
    """Predict the next character: embedding, LSTM layers, a linear layer on the last state."""

    def __init__(
        self, characters: int, embedding: int = 8, hidden: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = LSTM(embedding, hidden, layers)
        self.output = nn.Linear(hidden, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of each character to come next."""
        return self.output(self.lstm(self.embedding(text))[:, -1])
