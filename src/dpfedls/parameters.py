"""Named tensors ⇄ one flat vector: the server works on vectors, models and denoisers on tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

Vector = Float[Tensor, "dim"]
Updates = Float[Tensor, "clients dim"]
Total = Float[Tensor, "total"]  # a sum of updates, one coordinate longer where the norm adapts


@dataclass(frozen=True)
class Layout:
    """Where each trainable tensor of a model stands in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of the parameters that train (a frozen parameter is a constant)."""
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in trained), tuple(tuple(p.shape) for _, p in trained))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many coordinates each tensor has."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """How many coordinates the vector has."""
        return sum(self.sizes)

    def split(self, vector: Float[Tensor, "*batch dim"]) -> dict[str, Tensor]:
        """Views of the vector's pieces; leading dimensions (one vector a client) are kept."""
        pieces = vector.split(self.sizes, dim=-1)
        return {
            name: piece.view((*vector.shape[:-1], *shape))
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Vector:
        """The flat vector that ``split`` takes apart, as a copy."""
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def read(self, model: nn.Module) -> Vector:
        """The model's trainable parameters as one vector, as a copy."""
        return self.join(dict(model.named_parameters()))

    def write(self, vector: Vector, model: nn.Module) -> None:
        """Set the model's trainable parameters."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, tensor in self.split(vector).items():
                parameters[name].copy_(tensor)


class Coordinates:
    """In which clients train weights that the server keeps for inputs as given: here the same."""

    def inward(self, params: Vector) -> Vector:
        """The server's weights in the coordinates of clients."""
        return params

    def outward(self, step: Vector) -> Vector:
        """A step in the coordinates of clients as one of the server's weights."""
        return step


PLAIN = Coordinates()
