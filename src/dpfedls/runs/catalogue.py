"""What recipes there are, read from their TOML alone: no torch."""

from __future__ import annotations

import re
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
                    "about": _about(text, name),
                }
            )
    return found


def _about(text: str, name: str) -> str:
    """What a recipe's opening comment says beside, or below, the command that runs it."""
    first, second, *_ = text.splitlines()
    beside = re.sub(rf"^# dpfedls run {name}( --\S+ \S+)*", "", first).strip()
    return beside or second.lstrip("# ")
