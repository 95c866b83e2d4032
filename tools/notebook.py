"""Run docs/tutorial.ipynb and write what its cells print back into it; the site shows it as a page.

python tools/notebook.py
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


def read() -> dict[str, Any]:
    """The notebook as JSON has it."""
    return json.loads(NOTEBOOK.read_text("utf-8"))


def printed(notebook: dict[str, Any]) -> list[str]:
    """What each cell of code prints, run in the present folder one after another."""
    names: dict[str, Any] = {"__name__": "__main__"}
    said = []
    for cell in _code(notebook):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for k, part in enumerate("".join(cell["source"]).split("!dpfedls ")):
                code = part
                if k:  # the rest of a line that Jupyter gives to the shell
                    words, _, code = part.partition("\n")
                    _command(shlex.split(words))
                exec(compile(code, NOTEBOOK.name, "exec"), names)
        said.append(out.getvalue())
    return said


def kept(notebook: dict[str, Any]) -> list[str]:
    """What the notebook says that they print."""
    return ["".join("".join(o["text"]) for o in cell["outputs"]) for cell in _code(notebook)]


def markdown(notebook: dict[str, Any]) -> str:
    """The notebook as a page."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [f"```text\n{''.join(o['text']).rstrip()}\n```" for o in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _command(words: list[str]) -> None:
    from dpfedls.commands.main import main

    sys.argv = ["dpfedls", *words]
    with contextlib.suppress(SystemExit):
        main()


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


if __name__ == "__main__":
    made = read()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        texts = printed(made)
    for cell, text in zip(_code(made), texts, strict=True):
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [stream] if text else []
    NOTEBOOK.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")
