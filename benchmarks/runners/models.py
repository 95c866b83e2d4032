"""The models in the plainest torch, for the peers; ours are in ``dpfedls.tasks.models``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class CharacterLSTM(nn.Module):
    """Predict the next of 80 characters; torch's own fused LSTM, two layers of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 64, num_layers=2, batch_first=True)
        self.output = nn.Linear(64, 80)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of each character to come next."""
        return self.output(self.lstm(self.embedding(text))[0][:, -1])


class CharacterGRU(nn.Module):
    """The same with torch's own fused GRU, one layer of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.gru = nn.GRU(8, 64, batch_first=True)
        self.output = nn.Linear(64, 80)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of each character to come next."""
        return self.output(self.gru(self.embedding(text))[0][:, -1])


class Positions(nn.Module):
    """Adds learned numbers to each position."""

    def __init__(self, positions: int, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(positions, wide))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return x + self.weight


class Last(nn.Module):
    """The last position."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, wide)."""
        return x[:, -1]


def transformer(
    positions: Callable[..., nn.Module] = Positions, last: Callable[[], nn.Module] = Last
) -> nn.Sequential:
    """Two of torch's own encoder layers on characters; the other layers are ours in our runner."""
    layers = [
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    return nn.Sequential(
        nn.Embedding(80, 32), positions(32, 32), *layers, last(), nn.Linear(32, 80)
    )


class Residual(nn.Module):
    """``x + body(x)``."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both ways."""
        return x + self.body(x)


def resnet8(residual: Callable[..., nn.Module] = Residual) -> nn.Sequential:
    """Three residual blocks with GroupNorm; ``residual`` is our own layer in our own runner."""

    def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        kernels = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [kernels, nn.GroupNorm(4, outputs)]

    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2)):
        body = [*convolution(outputs, outputs), nn.ReLU(), *convolution(outputs, outputs)]
        layers += [*convolution(inputs, outputs, stride), nn.ReLU()]
        layers += [residual(*body), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def gelu_mlp() -> nn.Module:
    """One hidden layer of GELU."""
    return nn.Sequential(nn.Linear(784, 252), nn.GELU(), nn.Linear(252, 10))


def _logistic() -> nn.Module:
    return nn.Linear(784, 10)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 252), nn.ReLU(), nn.Linear(252, 10))


def _cnn() -> nn.Module:
    """The network of Section 6.2 at an eighth of its width."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 48),
        nn.ReLU(),
        nn.Linear(48, 24),
        nn.ReLU(),
        nn.Linear(24, 10),
    )


_MAKERS: dict[str, Callable[[], nn.Module]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
    "lstm": CharacterLSTM,
    "gelu-mlp": gelu_mlp,
    "resnet-8": resnet8,
    "transformer": transformer,
    "gru": CharacterGRU,
}


def make_model(name: str) -> nn.Module:
    """The model of a workload, with the same first weights every time."""
    torch.manual_seed(0)
    return _MAKERS[name]()
