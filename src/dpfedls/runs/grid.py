"""Grids: every combination of some settings, each overriding one recipe."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from dpfedls.errors import InputError
from dpfedls.runs import recipes
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord
from dpfedls.runs.side_by_side import Job

Metrics = dict[str, float | None]
Tell = Callable[[str, str, bool], None]
"""``tell(run, news, done)`` after every round of a run; ``done`` when it has ended."""
# Commas inside brackets, braces and quotes belong to a value.
_VALUE = r"""(?:[^,"'\[\]{}]|"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\})+"""


@dataclass(frozen=True)
class Point:
    """One combination of a grid."""

    settings: dict[str, Any]  # by key, as values
    label: str  # the same for people
    recipe: Recipe  # with these settings, before its noise is chosen
    whole: list[str]  # all that overrides the recipe, as ``--set`` takes it


def points(
    source: str, grid: Sequence[str], settings: Sequence[str] = (), last: Sequence[str] = ()
) -> list[Point]:
    """Every combination of ``key=v1,v2,…``; ``settings`` come before these, ``last`` after them.

    All are decoded here, so that a wrong key is said before anything is trained.
    """
    axes: dict[str, list[str]] = {}
    for text in grid:
        key, values = axis(text)
        if key in axes:
            raise InputError(f"--grid names {key} twice; give all its values at once: {key}=v1,v2")
        axes[key] = values
    found = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        own = [f"{key}={value}" for key, value in chosen.items()]
        whole = [*settings, *own, *last]
        recipe, label = recipes.read(source, whole), " ".join(own)
        if same := [point.label for point in found if point.recipe == recipe]:
            raise InputError(f"--grid gives one run twice, as {same[0]} and {label}; remove one")
        parsed = {key: _parsed(value) for key, value in chosen.items()}
        found.append(Point(parsed, label, recipe, whole))
    return found


def axis(text: str) -> tuple[str, list[str]]:
    """The key of ``key=v1,v2`` and its values as text."""
    key, equals, values = text.partition("=")
    if not equals or not key or not re.fullmatch(f"{_VALUE}(,{_VALUE})*", values):
        raise InputError(
            f"--grid {text!r} is not key=v1,v2; write for example plan.clip_norm=0.3,0.6"
        )
    found = [value.strip() for value in re.findall(_VALUE, values)]
    if key == "seed":
        raise InputError("seed cannot be on the grid; use --seeds N")
    if len(set(found)) < len(found):
        raise InputError(f"--grid {text!r} has a value twice; it would be run twice: remove one")
    return key, found


def spread(runs: Sequence[Metrics]) -> dict[str, dict[str, float | None]]:
    """Mean and standard deviation of every metric; one run has no deviation, so null."""
    found = {}
    for name in dict.fromkeys(name for metrics in runs for name in metrics):
        values = [value for metrics in runs if (value := metrics.get(name)) is not None]
        whole = len(values) == len(runs)  # a metric that is no number once has no mean
        found[name] = {
            "mean": mean(values) if whole else None,
            "std": stdev(values) if whole and len(values) > 1 else None,
        }
    return found


def described(metrics: Metrics) -> str:
    """The metrics of a run in a few words."""
    return ", ".join(f"{key} {value:.4g}" for key, value in metrics.items() if value is not None)


def tell_round(tell: Tell, job: Job, line: RoundRecord) -> None:
    """How far a run is."""
    tell(job.name, f"round {line.round}/{job.recipe.plan.rounds}", False)


def first_metric(metrics: dict[str, Any]) -> str | None:
    """What is shown first and chosen by: accuracy where there is one, else the loss."""
    return next((name for name in ("accuracy", "loss") if name in metrics), None)


def _parsed(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string
