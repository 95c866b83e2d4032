"""A finished run sealed: its privacy statement, written last, with digests of all other files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dpfedls.privacy import bounded
from dpfedls.privacy.bounded import file_digest, read_bounded
from dpfedls.privacy.durable import write_whole
from dpfedls.runs.checkpoint import FILE
from dpfedls.runs.jsonable import plain

STATEMENT = "privacy.json"
SEALED = (
    "recipe.toml",
    "notes.json",
    "rounds.jsonl",
    "ledger.sqlite",
    str(FILE),
    "model.safetensors",
    "report.html",
)


def seal(folder: Path, facts: dict[str, Any]) -> None:
    """Write the statement of a run whose other files are all there and closed.

    Some facts (whose the test samples are, say) follow from nothing else in the folder, so the
    statement carries a digest of itself too.
    """
    files = {name: file_digest(folder / name) for name in SEALED if (folder / name).is_file()}
    values = plain(facts) | {"files": files}
    files[STATEMENT] = content_digest(values)
    write_whole(folder / STATEMENT, json.dumps(values, indent=2).encode())


def is_finished(folder: Path) -> bool:
    """Whether a run has come to a model there; one that diverged has a statement and no model."""
    path = folder / STATEMENT
    if not path.is_file():
        return False
    try:
        return "ended" not in json.loads(read_bounded(path, bounded.STATEMENT))
    except (OSError, ValueError, TypeError, RecursionError):  # what is wrong with it, verify says
        return True


def sealed_files(stated: dict[str, Any]) -> dict[str, str]:
    """The digests in a statement that is as it was written; none in an altered one."""
    files = stated.get("files")
    whole = isinstance(files, dict) and files.get(STATEMENT) == content_digest(stated)
    return files if isinstance(files, dict) and whole else {}


def content_digest(values: dict[str, Any]) -> str:
    """SHA-256 of a statement but for this digest itself; how it is laid out does not matter."""
    files = {name: digest for name, digest in values["files"].items() if name != STATEMENT}
    content = values | {"files": files}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
