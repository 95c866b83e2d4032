"""How commands answer: one JSON object or readable text on stdout, progress on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer

from dpfedls.runs.jsonable import plain

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
]


def answer(values: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the result, for a program or for a person."""
    print(json.dumps(plain(values), indent=2, ensure_ascii=False) if as_json else text)


def pairs(values: dict[str, Any], keys: Sequence[str]) -> str:
    """Some of the values, one a line."""
    width = max(len(key) for key in keys)
    return "\n".join(f"{key:<{width}}  {shown(values[key])}" for key in keys)


def shown(value: Any) -> str:
    """A value as a person reads it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(part)}" for key, part in value.items()) or "none"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.6g}"
    return str(value)
