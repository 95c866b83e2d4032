"""What is known after a round, and what a run came to: one kind of each, for every way to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from torch import nn

from dpfedls.errors import BudgetExhausted
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.recipe import Recipe


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of rounds.jsonl, made from public values and the test set alone.

    ``metrics`` is empty in rounds without evaluation. Without noise there is no finite ε: null.
    """

    round: int
    epsilon: float | None  # spent so far, at the plan's δ
    clip_norm: float | None = None  # of this round; null where nothing is clipped
    server_rate: float | None = None  # of this round
    accuracy: float | None = None
    loss: float | None = None
    metrics: dict[str, float | None] = msgspec.field(
        default_factory=dict
    )  # all of them by name, accuracy too
    seconds: float | None = None  # not when deployed: time follows the cohort's size, a secret


Watch: TypeAlias = Callable[[RoundRecord], Any]
"""Called after every round, which a simulated run may still be writing to its folder.

May have ``start(run)`` and ``close()``, called before and after.
"""


@dataclass(frozen=True, repr=False)
class Result:
    """A trained model, what it cost and how it was made."""

    model: nn.Module
    recipe: Recipe
    history: list[RoundRecord]
    statement: dict[str, Any]
    engine: str  # which one trained, and why
    folder: Path | None = None
    exhausted: BudgetExhausted | None = None  # the budget ended the run early

    def __repr__(self) -> str:
        """One line: a notebook shows it after every cell that trains."""
        metrics = "".join(f"{name} {value:.4g}, " for name, value in self.metrics.items())
        return (
            f"Result({metrics}ε = {self.epsilon:.4g} at δ = {self.plan.target_delta:.3g}, "
            f"{len(self.history)} of {self.plan.rounds} rounds, folder {self.folder})"
        )

    @property
    def plan(self) -> PrivacyPlan:
        """The promise."""
        return self.recipe.plan

    @property
    def metrics(self) -> dict[str, float]:
        """Of the model on the test set, by name; empty without one."""
        found = last_metrics(self.history)
        return {name: math.nan if value is None else value for name, value in found.items()}

    @property
    def accuracy(self) -> float | None:
        """Of the model on the test set."""
        return self.metrics.get("accuracy")

    @property
    def loss(self) -> float | None:
        """Of the model on the test set."""
        return self.metrics.get("loss")

    @property
    def epsilon(self) -> float:
        """What was spent at ``plan.delta``; infinite where no noise was added."""
        return self.statement["epsilon"]

    @property
    def clip_norm(self) -> float | None:
        """Of the last round."""
        return self.history[-1].clip_norm if self.history else None

    def privacy_statement(self) -> dict[str, Any]:
        """What was promised to whom, under which assumptions, as plain data."""
        return self.statement

    def summary(self) -> dict[str, Any]:
        """What ``dpfedls run`` and ``resume`` answer."""
        found = summary(self.folder, self.recipe, self.history, self.statement)
        return found | {"engine": self.engine}


def last_metrics(rounds: Sequence[RoundRecord]) -> dict[str, float | None]:
    """Those of the last round that was evaluated."""
    return next((line.metrics for line in reversed(rounds) if line.metrics), {})


def summary(
    folder: Path | None, recipe: Recipe, rounds: Sequence[RoundRecord], facts: dict[str, Any]
) -> dict[str, Any]:
    """What a run came to, as plain data; ``facts`` is its privacy statement."""
    seconds = [line.seconds for line in rounds if line.seconds is not None]
    metrics = last_metrics(rounds)
    return {
        "run": None if folder is None else str(folder),
        "task": recipe.task,
        "rounds": len(rounds),
        "accuracy": metrics.get("accuracy"),
        "loss": metrics.get("loss"),
        "metrics": metrics,
        "epsilon": facts["epsilon"],
        "delta": facts["delta"],
        "accountant": facts["accountant"],
        "noise_multiplier": recipe.plan.noise_multiplier,
        "clip_norm": rounds[-1].clip_norm if rounds else None,
        "method": recipe.method,
        "chosen": recipe.chosen,
        "strength": recipe.strength,
        "seconds_per_round": sum(seconds) / len(seconds) if seconds else None,
        "private": recipe.plan.is_private,
        "mode": recipe.mode,
        "seed": recipe.seed,
    }
