"""How an item was made: the command, the code, the machine and the time."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dpfedls.errors import InputError
from dpfedls.paper.item import Options, trained_with
from dpfedls.runs.folder import read_lines
from dpfedls.runs.origin import commit

if TYPE_CHECKING:
    from dpfedls.paper.cells import Run
    from dpfedls.paper.kept import Earlier

_ORIGINS = "made-by.jsonl"


class Origin(msgspec.Struct, frozen=True):
    """A line of made-by.jsonl: what made the rounds of a run, from round ``since`` on."""

    commit: str
    hardware: str
    torch: str
    since: int = 1
    data: str = ""  # what it was trained on; files may differ from machine to machine

    def __str__(self) -> str:
        return f"commit {self.commit} on {self.hardware}, torch {self.torch}"


_NOT_NOTED = Origin("not noted", "a machine not noted", "not noted")


def provenance(
    options: Options,
    item: str,
    began: float,
    runs: Sequence[Sequence[Run]],
    earlier: Earlier | None = None,
) -> dict[str, Any]:
    """What a reader needs to make the item again; nothing in it names a person's folders.

    Runs that were there already may come from other code and another machine: they say which. An
    earlier file of the item is added to: a run whose numbers it had counts as it did there, even
    where its folder is here, for its seconds cannot be told from those of the others. All cells of
    that file are kept, so the command is noted without --only, with the larger --seeds of the two.
    """
    if earlier is not None:
        seeds = max(options.seeds, earlier.facts["seeds"])
        options = replace(options, seeds=seeds, only=())
    facts: dict[str, Any] = {
        "item": item,
        "command": command(options, item),
        "seeds": options.seeds,
        "settings": list(options.settings),
        "written_by": commit(),
    }
    different = {run.folder: run for row in runs for run in row}.values()
    if not different and earlier is None:
        own, seconds = [origin(options.device)], round(time.perf_counter() - began, 1)
        return facts | {"made_by": list(map(str, own)), "seconds": seconds, "runs": 0}
    made_by = [str(o) for run in different for o in run.origins]
    before = {"made_by": [], "training_seconds": 0, "runs": 0}
    if earlier is not None:
        before = earlier.facts
        different = [run for run in different if run.folder not in earlier.held]
    trained = sum(line.seconds or 0.0 for run in different for line in run.rounds)
    return facts | {
        "made_by": list(dict.fromkeys([*before["made_by"], *made_by])),
        "training_seconds": before["training_seconds"] + round(trained),
        "runs": before["runs"] + len(different),
    }


def page(facts: dict[str, Any], sections: Sequence[str]) -> str:
    """An item's section of Markdown: title, what was overridden, text, and how it was made."""
    laid = " ".join(f"`{setting}`" for setting in trained_with(facts["settings"]))
    made, by = f"Made by `{facts['command']}`", "; ".join(facts["made_by"])
    if facts["runs"]:  # some may have been there before the command was given
        trained = duration(facts["training_seconds"])
        made += f". Runs: {facts['runs']}, {trained} of training, by {by}"
    else:
        made += f" in {duration(facts['seconds'])}, {by}"
    above = [f"**Overridden in every recipe:** {laid}."] if laid else []
    return "\n\n".join([f"## {facts['title']}", *above, *sections, f"{made}."]) + "\n"


def command(options: Options, item: str) -> str:
    """The command line, less --out and --jobs, which change nothing in the result."""
    words = ["dpfedls", "reproduce", item, "--seeds", str(options.seeds)]
    words += [] if options.device == "cpu" else ["--device", options.device]
    for setting in options.settings:
        words += ["--set", setting]
    for label in options.only:
        words += ["--only", label]
    words += ["--finished"] * options.finished
    return shlex.join(words)


def origin(device: str) -> Origin:
    """What this process makes runs by."""
    return Origin(commit(), hardware(device), version("torch"))


def sign(folder: Path, by: Origin) -> None:
    """Note in a run's folder what makes its rounds from now on."""
    with (folder / _ORIGINS).open("ab") as lines:
        lines.write(msgspec.json.encode(by) + b"\n")


def read_origins(folder: Path) -> list[Origin]:
    """What made a run. Rounds that ``dpfedls resume`` made behind a note are not told apart."""
    try:
        noted = read_lines(folder / _ORIGINS, Origin)
    except InputError:  # a note that was cut short; the run itself is sound
        noted = []
    return noted if noted and noted[0].since == 1 else [_NOT_NOTED, *noted]


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
