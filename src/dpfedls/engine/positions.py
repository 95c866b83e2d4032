"""Layers on the positions of a sequence, as modules that every engine recognises."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LastPosition(nn.Module):
    """The last position of a sequence (batch, positions, …)."""

    def forward(self, sequence: Tensor) -> Tensor:
        """(batch, …)."""
        return sequence[:, -1]


class PositionEmbedding(nn.Module):
    """Adds learned numbers to each position of a sequence (batch, positions, wide)."""

    def __init__(self, positions: int, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(positions, wide))

    def forward(self, sequence: Tensor) -> Tensor:
        """The same shape."""
        return sequence + self.weight
