"""How an item was made: the command, the code, the machine and the time."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dpfedls.experiments.folder import read_lines
from dpfedls.reproduce.item import Options

if TYPE_CHECKING:
    from dpfedls.reproduce.cells import Run

_ORIGINS = "made-by.jsonl"


class Origin(msgspec.Struct, frozen=True):
    """A line of made-by.jsonl: what made the rounds of a run, from some round on."""

    commit: str
    hardware: str
    torch: str


_NOT_NOTED = Origin("not noted", "a machine not noted", "not noted")


def provenance(
    options: Options, item: str, began: float, runs: Sequence[Sequence[Run]]
) -> dict[str, Any]:
    """What a reader needs to make the item again; nothing in it names a person's folders.

    Runs that were there already may come from other code and another machine: they say which.
    """
    different = {run.folder: run for row in runs for run in row}.values()
    origins = [o for run in different for o in run.origins or [_NOT_NOTED]]
    origins = origins or [origin(options.device)]
    return {
        "item": item,
        "command": command(options, item),
        **{name: _all(origins, name) for name in Origin.__struct_fields__},
        "seeds": options.seeds,
        "settings": list(options.settings),
        "seconds": round(time.perf_counter() - began, 1),
        "runs": len(different),
        "training_seconds": round(sum(line.seconds or 0.0 for r in different for line in r.rounds)),
    }


def _all(origins: Sequence[Origin], name: str) -> str:
    return " and ".join(dict.fromkeys(getattr(o, name) for o in origins))


def page(facts: dict[str, Any], sections: Sequence[str]) -> str:
    """An item's section of Markdown: title, what was laid over it, text, and how it was made."""
    laid = " ".join(f"`{setting}`" for setting in facts["settings"])
    commits = "commits" if " and " in facts["commit"] else "commit"
    by = f"{commits} {facts['commit']}, on {facts['hardware']}, torch {facts['torch']}"
    made = f"Made by `{facts['command']}`"
    if facts["runs"]:  # some may have been there before the command was given
        trained = duration(facts["training_seconds"])
        made += f"; its {facts['runs']} runs, {trained} of training, by {by}"
    else:
        made += f", {by}, in {duration(facts['seconds'])}"
    above = [f"**Laid over every recipe:** {laid}."] if laid else []
    return "\n\n".join([f"## {facts['title']}", *above, *sections, f"{made}."]) + "\n"


def command(options: Options, item: str) -> str:
    """The command line, less --out and --jobs, which change nothing in the result."""
    words = ["dpfedls", "reproduce", item, "--seeds", str(options.seeds)]
    words += [] if options.device == "cpu" else ["--device", options.device]
    for setting in options.settings:
        words += ["--set", setting]
    for label in options.only:
        words += ["--only", label]
    return shlex.join(words)


def origin(device: str) -> Origin:
    """What this process makes runs by."""
    return Origin(commit(), hardware(device), version("torch"))


def sign(folder: Path, by: Origin) -> None:
    """Note in a run's folder what makes its rounds from now on."""
    with (folder / _ORIGINS).open("ab") as lines:
        lines.write(msgspec.json.encode(by) + b"\n")


def read_origins(folder: Path) -> list[Origin]:
    """What made a run; nothing where it was made for no item, or before this was noted."""
    return read_lines(folder / _ORIGINS, Origin)


@cache  # it asks git
def commit() -> str:
    """The commit of the source, or the package's version where the source is in no repository."""
    here = Path(__file__).parent
    # An environment may lie inside somebody else's repository: ask whether it knows this file.
    known = _git(here, "ls-files", "--error-unmatch", "item.py")
    found = known and _git(here, "describe", "--always", "--dirty", "--exclude=*")
    return found or f"dpfedls {version('dpfedls')}"


def hardware(device: str) -> str:
    """What the runs were made on."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {os.cpu_count()} cores"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
