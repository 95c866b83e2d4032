"""Flower apps: ``dpfedls deploy init`` writes one for a recipe, ``deploy local`` runs one."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.errors import InputError
from dpfedls.flower.promise import on_nodes
from dpfedls.runs import recipes
from dpfedls.runs.recipe import Recipe

FILES = (
    "pyproject.toml",
    "README.md",
    *(f"federation/{name}" for name in ("__init__.py", "server.py", "client.py", "recipe.toml")),
)


def write_app(folder: Path, recipe: Recipe, settings: dict[str, str | int | float]) -> None:
    """Write the app into an empty or absent folder; its recipe stands there with noise chosen."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} already holds files; nothing was touched: choose another")
    recipe = on_nodes(recipe)
    template = resources.files("dpfedls").joinpath("flower", "template")
    config = "\n".join(f"{k} = {msgspec.json.encode(v).decode()}" for k, v in settings.items())
    contents = {
        "pyproject.toml": _PYPROJECT.format(config=config),
        "README.md": _README.format(folder=folder.name),
        "federation/__init__.py": '"""A federation that runs recipe.toml."""\n',
        "federation/server.py": template.joinpath("server.py").read_text(encoding="utf-8"),
        "federation/client.py": template.joinpath("client.py").read_text(encoding="utf-8"),
        "federation/recipe.toml": recipes.encode(recipe),
    }
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[name], encoding="utf-8")


def find_app(source: str) -> Path | None:
    """The app folder that ``source`` is; None where it names a recipe.

    A recipe file inside an app is refused: run alone it would train the recipe's own data, and
    the app's loader and model would be left out in silence.
    """
    path = Path(source)
    if path.is_dir():
        if _app_table(path) is None:
            raise InputError(
                f"{source} is a folder without a Flower app (pyproject.toml with [tool.flwr.app]); "
                "give an app's folder, a recipe file or a recipe's name, or make an app by: "
                f"dpfedls deploy init {source}"
            )
        return path
    if path.is_file():
        for folder in path.resolve().parents:
            if _app_table(folder) is not None:
                raise InputError(
                    f"{source} belongs to the app in {folder}, whose own loader and model would "
                    f"not be used; run the app: dpfedls deploy local {folder}"
                )
    return None


def read_app_recipe(folder: Path) -> Recipe:
    """The recipe that an app runs: recipe.toml beside its ServerApp."""
    components = (_app_table(folder) or {}).get("components") or {}
    module = str(components.get("serverapp", "")).partition(":")[0]
    path = folder.joinpath(*module.split(".")[:-1], "recipe.toml")
    if not path.is_file():
        raise InputError(
            f"the app in {folder} has no {path.relative_to(folder)} beside its serverapp "
            f"{module!r}, so its promise cannot be known; keep recipe.toml there"
        )
    return recipes.read(str(path))


def _app_table(folder: Path) -> dict[str, Any] | None:
    """``[tool.flwr.app]`` of the folder's pyproject.toml, if it has one."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}; fix that line") from error
    return values.get("tool", {}).get("flwr", {}).get("app")


def deployed(recipe: Recipe, settings: list[str]) -> Recipe:
    """The recipe with noise from the operating system, unless a setting says otherwise."""
    if any(setting.startswith("mode=") for setting in settings):
        return recipe
    return msgspec.structs.replace(recipe, mode="deployed")


_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation"
version = "1.0.0"
description = "DP-Fed-LS on Flower"
license = "Apache-2.0"
dependencies = ["dpfedls[flower,secure]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "dpfedls"

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
{config}
"""

_README = """\
# A federation with user-level differential privacy

`federation/recipe.toml` is the promise and how it is kept; `server.py` and `client.py` are the two
sides. Put your own data loader into `people` in `client.py`, your own model into both, and the name
of your data into `recipe.toml` (`task = "our patients"`): report and log show it. The server's test
samples are best from people who are not trained on. Paths in a loader must be absolute: Flower runs
a copy of this folder.

This very app on this machine, over TLS, with your loader and your model; from the folder above:

    dpfedls deploy local {folder} --nodes 4

On several machines: docs/deploy.md of dpfedls, which ends in `flwr run . NAME --stream`. An
interrupted run goes on when it is started again: `run-folder`, on the server's machine, knows the
last released round and what was spent.
"""
