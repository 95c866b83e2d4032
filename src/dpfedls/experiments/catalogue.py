"""What recipes there are, read from their TOML alone: no torch."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def catalogue() -> list[dict[str, Any]]:
    """Name, task, what it reproduces, and its opening comment, for every recipe of the package."""
    found = []
    for path in sorted(
        resources.files("dpfedls").joinpath("recipes").iterdir(), key=lambda p: p.name[:-5]
    ):
        if path.name.endswith(".toml"):
            text = path.read_text(encoding="utf-8")
            values = tomllib.loads(text)
            name = path.name.removesuffix(".toml")
            found.append(
                {
                    "name": name,
                    "reproduces": values.get("reproduces", ""),
                    "task": values["task"],
                    "about": text.partition("\n")[0].removeprefix(f"# dpfedls run {name}").strip(),
                }
            )
    return found
