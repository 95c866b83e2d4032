"""The models in the plainest torch, for the peers; ours are in ``dpfedls.tasks.models``."""

from __future__ import annotations

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


_MAKERS = {"logistic": _logistic, "mlp": _mlp, "cnn": _cnn, "lstm": CharacterLSTM}


def make_model(name: str) -> nn.Module:
    """The model of a workload, with the same first weights every time."""
    torch.manual_seed(0)
    return _MAKERS[name]()
