"""What clients do: local SGD from the server's weights, projected onto a ball around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.component import Component, check_types
from dpfedls.errors import (
    InputError,
    require_finite,
    require_fraction,
    require_not_negative,
    require_positive,
)
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.people.losses import Loss
from dpfedls.people.precision import computing_in, to_precision
from dpfedls.sampling import Indices

Tree: TypeAlias = Any
"""A tensor, or a dict, tuple or list of trees: what a model takes and returns."""


@runtime_checkable
class Rows(Protocol):
    """What local updates ask of people's data: ``ClientData``, or what loads it when needed."""

    @property
    def starts(self) -> np.ndarray: ...
    @property
    def sizes(self) -> np.ndarray: ...
    def take(self, rows: Tensor, padded: bool = False) -> tuple[Tree, Tree]: ...


class LocalSGD(Component, frozen=True, tag=False):
    """Mini-batch SGD on one client's samples (ClientUpdate of Algorithm 1).

    Either ``epochs`` passes, shuffled each time, the last short batch used, or exactly ``steps``
    batches. With ``most_steps`` passes end after so many batches, however many samples a client
    has. In round t the learning rate is ``learning_rate · decay^t``. With projection "step" the
    local model returns to the ball after every step (the paper's way); with "final" only the
    finished update is clipped. With precision "bfloat16" the model computes in half the bits, much
    faster on a GPU; weights, steps and updates stay in float32. With ``retry_step`` a client whose
    first step is longer than that share of the clip norm trains again with gradients so scaled that
    it is not, unless its loss halves; and again while it grows (``people.steps.following``). With
    ``overshoot`` so does one whose first step would, by its gradient, take away more than so many
    times its loss. With ``shorten`` cohorts vote, in the coordinate that an adaptive clip norm has,
    on whether the model still improves; once it does not, the learning rate is divided by it and
    the limit of the server rate multiplied (``privacy.stall``).
    """

    epochs: int | None = None
    steps: int | None = None
    most_steps: int | None = None
    batch_size: int = 10
    learning_rate: float = 0.1
    decay: float = 1.0
    weight_decay: float = 0.0
    projection: Literal["step", "final"] = "step"
    precision: Literal["float32", "bfloat16"] = "float32"
    retry_step: float | None = None  # share of the clip norm, above 1 ÷ steps if that adapts
    overshoot: float | None = None  # losses that a first step may promise to take away
    shorten: float | None = None  # trainings by this, once cohorts vote that learning stalls

    def __post_init__(self) -> None:
        check_types(self, "local.")
        if (self.epochs is None) == (self.steps is None):
            raise InputError(
                f"local.epochs = {self.epochs} and local.steps = {self.steps}; give exactly one of "
                "them, since each says how long a client trains"
            )
        if self.steps is not None and self.most_steps is not None:
            raise InputError(
                f"local.most_steps = {self.most_steps} limits epochs, and local.steps = "
                f"{self.steps} says already how many there are; leave one of them out"
            )
        for name in ("epochs", "steps", "most_steps", "batch_size"):
            if (value := getattr(self, name)) is not None:
                require_positive(f"local.{name}", value, "a client must see at least one batch")
        require_finite("local.learning_rate", self.learning_rate, "0.1 is a common start")
        require_fraction("local.decay", self.decay, "1.0 keeps the learning rate")
        require_not_negative("local.weight_decay", self.weight_decay, "0 switches it off")
        if self.retry_step is not None:
            require_finite("local.retry_step", self.retry_step, "0.3 suits 25 steps")
        if self.overshoot is not None:
            require_finite("local.overshoot", self.overshoot, "no step takes away more than 1")
            if self.retry_step is not None:
                raise InputError(
                    f"local.overshoot = {self.overshoot:g} and local.retry_step = "
                    f"{self.retry_step:g} both say when a client trains again; leave one of them "
                    "out: the first suits a few steps, the second about 25"
                )
        if self.shorten is not None:
            require_finite("local.shorten", self.shorten, "16 divides the learning rate by 16")
            if self.shorten <= 1:
                raise InputError(
                    f"local.shorten = {self.shorten:g} would make trainings no shorter; give more "
                    "than 1: 16 divides the learning rate by 16"
                )

    @property
    def retries(self) -> bool:
        """Whether a client may train again."""
        return self.retry_step is not None or self.overshoot is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's arithmetic."""
        return getattr(torch, self.precision)

    def rate(self, round_: int) -> float:
        """The learning rate of a round."""
        return self.learning_rate * self.decay**round_


@runtime_checkable
class LocalUpdate(Protocol):
    """Train each client of a block from ``params``; one row of updates per client.

    ``radius`` is this round's clip norm, to which "step" projects and ``retry_step`` compares;
    ``pace`` times the round's learning rate is what it trains with.
    """

    def __call__(
        self,
        params: Vector,
        clients: Indices,
        round_: int,
        key: int,
        radius: float,
        pace: float = 1.0,
    ) -> Updates: ...


@dataclass(frozen=True)
class Update:
    """The parts of a local update."""

    model: nn.Module
    loss: Loss
    layout: Layout
    data: Rows
    local: LocalSGD

    def _outputs(self, run: Callable[[Tree], Tree], features: Tree) -> Tree:
        """What ``run`` makes of the features, in the precision asked for; given in float32."""
        with computing_in(self.local.dtype):
            return to_precision(run(to_precision(features, self.local.dtype)), torch.float32)
