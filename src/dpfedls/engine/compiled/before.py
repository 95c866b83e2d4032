"""What stands before a layer, as far as its compiled form depends on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from torch import nn

from dpfedls.engine.compiled import NotCompiled


@dataclass(frozen=True)
class Before:
    """What stands before a layer, and where the layer stands itself."""

    name: str  # of the layer in the model
    shape: tuple[int, ...]  # of a sample
    order: Literal["samples", "positions", "tokens"]  # how a batch lies in memory
    places: Mapping[str, int]  # of every trained tensor in the flat vector
    batch: int

    def refuse(self, layer: nn.Module, why: str) -> NoReturn:
        """No compiled form, because of this layer."""
        where = f"layer {self.name!r}" if self.name else "the model itself"
        raise NotCompiled(f"{where} ({type(layer).__name__}) {why}")

    def weights(self, layer: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """Where the layer's weights start, and how many: its tensors lie one after the other.

        A person may have put tensors of other shapes in place, frozen some, or shared them.
        """
        found = {name: tuple(p.shape) for name, p in layer.named_parameters()}
        if list(found.items()) != list(shapes.items()):
            self.refuse(layer, f"has tensors {found}, where its options ask for {dict(shapes)}")
        names = [f"{self.name}.{name}" if self.name else name for name in found]
        if any(name not in self.places for name in names):
            self.refuse(layer, "is frozen, or shares its weights with another layer")
        count, first = sum(map(math.prod, shapes.values())), self.places[names[0]] if names else 0
        return first, count


def with_bias(layer: Any, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer with weights of this shape, and perhaps a bias."""
    return {"weight": shape} if layer.bias is None else {"weight": shape, "bias": shape[:1]}
