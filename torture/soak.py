"""A long run: neither memory nor open files grow."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from torture import folders
from torture.outcome import Outcome
from torture.process import forked
from torture.watched import watch_noise

_MOST = 1.05  # times the memory that it took when a fifth was done


def soak(cases: int, seed: int) -> Outcome:
    """One run of so many rounds."""
    found = Outcome(cases=cases)
    with tempfile.TemporaryDirectory() as place:
        watch_noise(Path(place) / "noise")
        marks = Path(place) / "marks.json"
        answer = forked(lambda: _run(Path(place) / "run", cases, seed, marks), limit=1800)
        if answer.code:
            found.violations.append(f"the run failed: {answer.err[-300:]}")
            return found
        (early, files), (late, more_files) = json.loads(marks.read_text())
    found.note = f"rounds of one run; {early / 2**20:.0f} MB, at the end {late / 2**20:.0f} MB"
    if late > _MOST * early:
        found.violations.append(f"memory grew from {early} to {late} bytes")
    if more_files > files:
        found.violations.append(f"open files grew from {files} to {more_files}")
    return found


def _run(folder: Path, rounds: int, seed: int, marks: Path) -> None:
    from dpfedls.runs import recipe, simulate

    seen = []

    def look(record) -> None:
        if record.round in (max(1, rounds // 5), rounds):
            seen.append((_memory(), len(os.listdir("/proc/self/fd"))))

    settings = [*folders.settings("simulation", rounds), f"seed={seed}", "evaluate_every=100"]
    simulate.start(recipe.read("synthetic", settings), folder, [look])
    marks.write_text(json.dumps(seen))


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
