"""How commands answer: one JSON object or readable text on stdout, progress on stderr."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer

from dpfedls.runs.jsonable import plain

Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
]


def answer(values: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the result, for a program or for a person."""
    if not as_json:
        print(printable(text))
        return
    # JSON escapes only those below U+0020 by itself.
    content = json.dumps(plain(values), indent=2, ensure_ascii=False)
    print(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", content))


def printable(text: str) -> str:
    """Text whose control characters are seen, not obeyed: a folder may come from anybody."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same in one line, whatever a path or a name in it holds."""
    return printable(text).replace("\n", "\\n")


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and new line


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
    return "–" if value is None else str(value)
