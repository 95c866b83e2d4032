"""Recipes as TOML: read with overrides, written, and told apart."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import msgspec
import tomli_w

from dpfedls.auto.tables import filled
from dpfedls.denoisers import AnyDenoiser
from dpfedls.errors import InputError, unknown
from dpfedls.privacy.bounded import SETTINGS, read_bounded
from dpfedls.runs.explain import explain
from dpfedls.runs.recipe import PYTHON, Recipe
from dpfedls.tasks import own
from dpfedls.tasks.task import TASKS

_KINDS = {kind.__struct_config__.tag for kind in get_args(AnyDenoiser)}
# How a machine runs a recipe, and our words about it. No ε depends on these, and the model only by
# how sums are rounded, so a run that has begun may go on with others.
_HOW = {"device", "engine", "block_size", "evaluate_every", "chosen"}


def names() -> list[str]:
    """The recipes that travel with the package."""
    return sorted(
        p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name[-5:] == ".toml"
    )


def read(source: str, settings: list[str] | None = None) -> Recipe:
    """The recipe of that name, or in that TOML file, with ``key=value`` settings overriding it."""
    values = table(source)
    if source.endswith(".toml"):
        _name_files(values, Path(source).parent)  # ./file.py is beside the recipe that names it
    return decode(values, source, settings or [])


def table(source: str) -> dict[str, Any]:
    """A recipe's TOML as it stands, undecoded."""
    path = Path(source)
    if not source.endswith(".toml"):
        if source not in names():
            own_file = (
                'a recipe is a .toml file; in it, task = "./file.py:make" names your own task'
            )
            raise unknown("recipe", source, names(), own_file if source.endswith(".py") else "")
        text = _folder().joinpath(f"{source}.toml").read_text(encoding="utf-8")
    elif path.is_file():
        text = _read_text(path)
    else:
        raise InputError(
            f"recipe file {source} is not there; check the path, or run: dpfedls recipes"
        )
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{source} is not valid TOML: {error}; fix that line") from error


def decode(values: dict[str, Any], source: str, settings: list[str]) -> Recipe:
    """A recipe from its TOML table and settings; errors name the key."""
    for setting in settings:
        _override(values, setting)
        # Noise and the ε to choose it by replace each other: what is said last holds.
        if setting.startswith("plan.noise_multiplier="):
            values.pop("calibrate", None)
        elif setting.startswith("calibrate.epsilon=") and isinstance(values.get("plan"), dict):
            values["plan"].pop("noise_multiplier", None)
        # What is given now is not our choice any more.
        if isinstance(values.get("chosen"), dict):
            values["chosen"].pop(setting.partition("=")[0], None)
    _name_registered(values)
    _name_files(values, Path())
    values = filled(values)
    if isinstance(values.get("denoiser"), dict | list):
        values["denoiser"] = _each_step(values["denoiser"], _from_table)
    try:
        return msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        raise InputError(explain(str(error), values, source, Recipe)) from error


def encode(recipe: Recipe) -> str:
    """The recipe as TOML that ``decode`` reads back to an equal one."""
    values = msgspec.to_builtins(recipe)
    values["denoiser"] = _each_step(values["denoiser"], _to_table)
    return tomli_w.dumps(_without_none(values))


def _each_step(denoiser: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change the table of every denoiser of a chain, or of the one."""
    if isinstance(denoiser, list):
        return [_each_step(step, change) for step in denoiser]
    return change(denoiser) if isinstance(denoiser, dict) else denoiser


def _from_table(step: dict[str, Any]) -> dict[str, Any]:
    """TOML says ``kind = "package:Name"``, which no tag can match: an OwnDenoiser is made of it."""
    kind = step.get("kind")
    if not isinstance(kind, str) or not own.is_own(kind):
        return step
    return {"kind": "own", "name": kind, "settings": {k: v for k, v in step.items() if k != "kind"}}


def _to_table(step: dict[str, Any]) -> dict[str, Any]:
    return {"kind": step["name"], **step["settings"]} if step["kind"] == "own" else step


def _name_registered(values: dict[str, Any]) -> None:
    """Replace short names that installed packages register by whole ones, as a run folder needs."""
    task, steps = values.get("task"), values.get("denoiser")
    if isinstance(task, str) and task not in TASKS:
        values["task"] = own.registered("tasks", task)
    for step in steps if isinstance(steps, list) else [steps]:
        if isinstance(step, dict) and isinstance(kind := step.get("kind"), str):
            step["kind"] = kind if kind in _KINDS else own.registered("denoisers", kind)


def _name_files(values: dict[str, Any], base: Path) -> None:
    """Replace ./file.py in the names of own code by where the file is."""
    if isinstance(values.get("task"), str) and own.is_own(values["task"]):
        values["task"] = own.absolute(values["task"], base)
    steps = values.get("denoiser")
    for step in steps if isinstance(steps, list) else [steps]:
        if (
            isinstance(step, dict)
            and isinstance(step.get("kind"), str)
            and own.is_own(step["kind"])
        ):
            step["kind"] = own.absolute(step["kind"], base)


def differing(one: Recipe, other: Recipe) -> list[str]:
    """The keys by which two recipes are not one run: promise, and what the model depends on."""
    # Deployed, a seed draws nothing but a task that has a name, and on nodes whose samples count.
    given = one.mode == "deployed" and one.task == PYTHON and one.nodes is None
    how = _HOW | {"seed"} if given else _HOW
    keys = [key for key in Recipe.__struct_fields__ if key not in how]
    return [key for key in keys if getattr(one, key) != getattr(other, key)]


def fingerprint(recipe: Recipe) -> str:
    """Eight hex digits that differ for different recipes."""
    return hashlib.sha256(encode(recipe).encode()).hexdigest()[:8]


def _folder() -> Any:
    return resources.files("dpfedls").joinpath("recipes")


def _read_text(path: Path) -> str:
    try:
        # Windows' Notepad puts a mark before the text, which is no TOML.
        return read_bounded(path, SETTINGS).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error


def _override(values: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise InputError(f"setting {setting!r} is not key=value; write for example plan.rounds=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    except RecursionError as error:
        raise InputError(f"setting {key!r} is nested too deeply; nothing needs that") from error
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise InputError(f"setting {setting!r}: {parent!r} is a value and has no parts")
    values[last] = value


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return values
