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
from dpfedls.errors import (
    InputError,
    require_finite,
    require_not_negative,
    require_positive,
    require_share,
    unknown,
)
from dpfedls.local_sgd import LocalSGD
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.explain import explain


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Choose the plan's noise so that the whole run costs ``epsilon``."""

    epsilon: float
    accountant: Literal["pld", "rdp", "closed-form"] = "pld"


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
    diagnose: bool = False  # simulation only: also judge on private samples, into a file of its own
    reproduces: str = ""

    def __post_init__(self) -> None:
        require_finite("server_rate", self.server_rate, "the paper uses 1")
        require_positive("evaluate_every", self.evaluate_every, "1 judges the model every round")
        require_not_negative("seed", self.seed, "any whole number from 0 up will do")
        require_share("averaging", self.averaging, "0 is the last iterate, 1 the uniform average")
        if self.block_size is not None:
            require_positive("block_size", self.block_size, "it is how many clients train at once")
        if self.budget is not None:
            require_finite("budget", self.budget, "it is the ε never to exceed")
        if self.diagnose and self.mode == "deployed":
            raise InputError(
                "diagnose = true judges the model on people's own samples, and what leaves the "
                'private side must be noisy; leave it out, or use mode = "simulation"'
            )

    def resolved(self) -> Recipe:
        """The recipe with its noise chosen, so that the plan stands complete in the run folder."""
        if self.plan.noise_multiplier is not None:
            self._check_calibration()
            return self
        if self.calibrate is None:
            raise InputError(
                "the recipe says nothing about noise; give plan.noise_multiplier, or "
                "calibrate.epsilon to have it chosen"
            )
        plan = self.plan.calibrated(self.calibrate.epsilon, self.calibrate.accountant)
        return msgspec.structs.replace(self, plan=plan)

    def _check_calibration(self) -> None:
        if self.calibrate is None:
            return
        found = self.plan.epsilon(self.calibrate.accountant)
        if found > self.calibrate.epsilon:
            raise InputError(
                f"calibrate.epsilon = {self.calibrate.epsilon:g}, but plan.noise_multiplier = "
                f"{self.plan.noise_multiplier:g} gives ε = {found:.4g}; the two disagree about the "
                "promise: remove one of them"
            )


def names() -> list[str]:
    """The recipes that travel with the package."""
    return sorted(
        p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name[-5:] == ".toml"
    )


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
        text = _read_text(path)
    else:
        raise InputError(
            f"recipe file {source} is not there; check the path, or run: dpfedls recipes"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not valid TOML: {error}; mend that line") from error


def decode(values: dict[str, Any], source: str, settings: list[str]) -> Recipe:
    """A recipe from its TOML table and settings; errors name the key."""
    for setting in settings:
        _lay_over(values, setting)
        # Noise and the ε to choose it by replace each other: what is said last holds.
        if setting.startswith("plan.noise_multiplier="):
            values.pop("calibrate", None)
        elif setting.startswith("calibrate.epsilon=") and isinstance(values.get("plan"), dict):
            values["plan"].pop("noise_multiplier", None)
    try:
        return msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        raise InputError(explain(str(error), values, source, Recipe)) from error


def encode(recipe: Recipe) -> str:
    """The recipe as TOML that ``decode`` reads back to an equal one."""
    values = msgspec.to_builtins(recipe)
    return tomli_w.dumps(_without_none(values))


def fingerprint(recipe: Recipe) -> str:
    """Eight hex digits that differ for different recipes."""
    return hashlib.sha256(encode(recipe).encode()).hexdigest()[:8]


def _folder() -> Any:
    return resources.files("dpfedls").joinpath("recipes")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error


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


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    return values
