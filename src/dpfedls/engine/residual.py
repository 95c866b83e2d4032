"""A residual block, as a module that every engine recognises."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """``x + body(x)``, where the body keeps the shape."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """The inputs plus what the body makes of them."""
        return x + self.body(x)
