"""Recipes: what to train on what, under which promise, as data that decodes into the components."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomli_w

from dpfedls.denoising import AnyDenoiser, Identity
from dpfedls.errors import InputError, unknown
from dpfedls.local_update import LocalSGD
from dpfedls.privacy.accountants import AccountantName
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.sampling import Sampler


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choose the plan's noise so that the whole run costs ``epsilon``."""

    epsilon: float
    accountant: AccountantName = "pld"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, complete: the same recipe and seed give the same model."""

    task: str
    plan: PrivacyPlan
    local: LocalSGD
    denoiser: AnyDenoiser = msgspec.field(default_factory=Identity)
    calibrate: Calibration | None = None
    server_rate: float = 1.0
    averaging: float = 0.0
    budget: float | None = None  # stop before ε exceeds it; without one, the plan's rounds
    mode: Literal["simulation", "deployed"] = "simulation"
    seed: int = 0
    device: str = "cpu"
    block_size: int | None = None
    evaluate_every: int = 1
    reproduces: str = ""

    def resolved(self) -> Recipe:
        """The recipe with its noise chosen, so that the plan stands complete in the run folder."""
        if self.plan.noise_multiplier is not None:
            return self
        if self.calibrate is None:
            raise InputError(
                "the recipe says nothing about noise; give plan.noise_multiplier, or "
                "calibrate.epsilon to have it chosen"
            )
        plan = self.plan.calibrated(self.calibrate.epsilon, self.calibrate.accountant)
        return msgspec.structs.replace(self, plan=plan)


def names() -> list[str]:
    """The recipes that travel with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name[-5:] == ".toml")


def read(source: str, settings: list[str] | None = None) -> Recipe:
    """The recipe of that name, or in that TOML file, with ``key=value`` settings laid over it."""
    return decode(table(source), source, settings or [])


def table(source: str) -> dict[str, Any]:
    """A recipe's TOML as it stands, undecoded."""
    path = Path(source)
    if not source.endswith(".toml"):
        if source not in names():
            raise unknown("recipe", source, names())
        text = _folder().joinpath(f"{source}.toml").read_text(encoding="utf-8")
    elif path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        raise InputError(f"recipe file {source} is not there; check the path, or run: dpfedls recipes")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not valid TOML: {error}; mend that line") from error


def decode(values: dict[str, Any], source: str, settings: list[str]) -> Recipe:
    """A recipe from its TOML table and settings; errors name the key."""
    for setting in settings:
        _lay_over(values, setting)
    if any(setting.startswith("plan.noise_multiplier=") for setting in settings):
        values.pop("calibrate", None)  # noise given by hand replaces the recipe's own choice of it
    try:
        return msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), values, source)) from error


def encode(recipe: Recipe) -> str:
    """The recipe as TOML that ``decode`` reads back to an equal one."""
    values = msgspec.to_builtins(recipe)
    return tomli_w.dumps(_without_none(values))


def fingerprint(recipe: Recipe) -> str:
    """Eight hex digits that differ for different recipes."""
    return hashlib.sha256(encode(recipe).encode()).hexdigest()[:8]


def _folder() -> Any:
    return resources.files("dpfedls").joinpath("recipes")


def _lay_over(values: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise InputError(f"setting {setting!r} is not key=value; write for example plan.rounds=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise InputError(f"setting {setting!r}: {parent!r} is a value and has no parts")
    values[last] = value


def _explain(message: str, values: dict[str, Any], source: str) -> str:
    """msgspec's message with the key in plain words and, for an unknown key, the nearest one."""
    what, _, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    if "unknown field" in what:
        name = what.split("`")[1]
        owner = values
        for part in key.split(".") if key else []:
            owner = owner[part]
        known = _fields(key, owner)
        remedy = str(unknown("key", f"{key}.{name}".lstrip("."), [f"{key}.{k}".lstrip(".") for k in known]))
        return f"{source}: {remedy}"
    place = f"{source}, {key}" if key else source
    return f"{place}: {what[0].lower()}{what[1:]}"


def _fields(key: str, owner: dict[str, Any]) -> list[str]:
    """The keys that a table of the recipe may have."""
    structs: dict[str, Any] = {"": Recipe, "plan": PrivacyPlan, "local": LocalSGD, "calibrate": Calibration}
    if key in structs:
        return list(structs[key].__struct_fields__)
    for union in (AnyDenoiser, Sampler):
        for member in getattr(union, "__args__", ()):
            if member.__struct_config__.tag == owner.get("kind"):
                return list(member.__struct_fields__)
    return []


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return values
