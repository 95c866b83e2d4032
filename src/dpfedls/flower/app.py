"""``dpfedls deploy init``: a complete Flower app for a recipe."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from dpfedls.errors import InputError
from dpfedls.runs import recipe as recipes
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
    recipe = recipe.resolved()
    template = resources.files("dpfedls").joinpath("flower", "template")
    config = "\n".join(f"{k} = {msgspec.json.encode(v).decode()}" for k, v in settings.items())
    contents = {
        "pyproject.toml": _PYPROJECT.format(config=config),
        "README.md": _README,
        "federation/__init__.py": '"""A federation that runs recipe.toml."""\n',
        "federation/server.py": template.joinpath("server.py").read_text(encoding="utf-8"),
        "federation/client.py": template.joinpath("client.py").read_text(encoding="utf-8"),
        "federation/recipe.toml": recipes.encode(recipe),
    }
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[name], encoding="utf-8")


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
sides. Put your own data loader into `people` in `client.py`, your own model into both.

On this machine, over TLS, as it is:

    dpfedls deploy local federation/recipe.toml --nodes 4

On several machines: docs/deploy.md of dpfedls, which ends in `flwr run . NAME --stream`. An
interrupted run goes on when it is started again: `run-folder`, on the server's machine, knows the
last released round and what was spent.
"""
