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
    batches. In round t the learning rate is ``learning_rate · decay^t``. With projection "step" the
    local model returns to the ball after every step (the paper's way); with "final" only the
    finished update is clipped.

    ``retry_step`` and ``overshoot`` are for inputs or targets in large units: a client whose first
    step is too long trains again with gradients so scaled that it is not (``people.steps``); at
    most one of the two. ``shorten`` is for people who differ: cohorts vote on whether the model
    still improves, in the coordinate that an adaptive clip norm has (``privacy.stall``).
    """

    epochs: int | None = None  # passes over a client's samples
    steps: int | None = None  # or exactly so many batches
    most_steps: int | None = None  # passes end after so many batches
    batch_size: int = 10
    learning_rate: float = 0.1
    decay: float = 1.0  # of the learning rate, per round
    weight_decay: float = 0.0
    projection: Literal["step", "final"] = "step"
    precision: Literal["float32", "bfloat16"] = "float32"  # of the model; weights stay in float32
    # And the loss did not halve. It must be above 1 ÷ steps if the norm adapts.
    retry_step: float | None = None  # train again if the first step exceeds this × clip norm
    overshoot: float | None = None  # or if it should take away more than this × the loss
    shorten: float | None = None  # divides the learning rate once clients vote that learning stalls

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
