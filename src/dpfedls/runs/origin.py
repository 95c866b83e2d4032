"""When a run was started and by which code: noted once, so that a report needs no clock."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.privacy.bounded import STATEMENT, read_bounded


def origin(notes: Path) -> dict[str, Any]:
    """The day a run was first opened, and each code that has made rounds of it, oldest first.

    Days, not seconds: how long rounds take follows the size of their cohorts, which is secret.
    """
    before = noted(notes)
    made_by = [made for made in before.made_by if made != commit()]
    started = before.started or datetime.now(UTC).date().isoformat()
    return {"started": started, "made_by": [*made_by, commit()]}


class OwnCode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's own code at work in a run: all that is noted of it, and all that is read back.

    An earlier version noted values that an object held, too; they are dropped when a run goes on.
    """

    used_as: str
    name: str
    sha256: str | None = None  # of the file it stands in
    settings_sha256: str | None = None  # of a denoiser's attributes


class Noted(msgspec.Struct):
    """What the notes of a run say of those who made it; nothing where there are none yet."""

    started: str = ""
    made_by: list[str] = []
    own_code: list[OwnCode] = []


def noted(notes: Path) -> Noted:
    """What was noted before; nothing in a new or damaged file, which is then written anew."""
    try:
        return msgspec.json.decode(read_bounded(notes, STATEMENT), type=Noted)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return Noted()


@cache  # it asks git
def commit() -> str:
    """The commit of the source, or the package's version where the source is in no repository."""
    here = Path(__file__).parent
    # An environment may lie inside somebody else's repository: ask whether it knows this file.
    known = _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
    found = known and _git(here, "describe", "--always", "--dirty", "--exclude=*")
    return found or f"dpfedls {version('dpfedls')}"


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except OSError:  # no git, or none that may be executed
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
