"""A long run: neither memory, nor open files, nor the time that a round takes grow."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from torture import folders
from torture.outcome import Outcome
from torture.process import forked
from torture.watched import watch_noise

_MOST = 1.05  # times the memory that it took when a fifth was done
_SLOWER = 1.5  # times the CPU of the second fifth: the machine has other work to do
_FIFTHS = 5


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
        seen = json.loads(marks.read_text())
    memory, files, clock = zip(*seen, strict=True)
    early, late = memory[0], memory[-1]
    part = max(1, cases // _FIFTHS)
    first, last = (clock[1] - clock[0]) / part, (clock[-1] - clock[-2]) / part
    found.note = (
        f"rounds of one run; {early / 2**20:.0f} MB after a fifth, {late / 2**20:.0f} at the end; "
        f"{1e3 * first:.1f} ms of CPU a round in the second fifth, {1e3 * last:.1f} ms in the last"
    )
    if late > _MOST * early:
        found.violations.append(f"memory grew from {early} to {late} bytes")
    if files[-1] > files[0]:
        found.violations.append(f"open files grew from {files[0]} to {files[-1]}")
    if cases >= 1_000 and last > _SLOWER * first:  # fewer rounds are too short to be timed
        found.violations.append(f"a round took {first:.4f} s of CPU at first, {last:.4f} s at last")
    return found


def _run(folder: Path, rounds: int, seed: int, marks: Path) -> None:
    from dpfedls.runs import recipes, simulate

    seen = []
    at = {max(1, rounds * part // _FIFTHS) for part in range(1, _FIFTHS + 1)}

    def look(record) -> None:
        if record.round in at:
            seen.append((_memory(), len(os.listdir("/proc/self/fd")), time.process_time()))

    settings = [*folders.settings("simulation", rounds), f"seed={seed}", "evaluate_every=100"]
    simulate.start(recipes.read("synthetic", settings), folder, [look])
    marks.write_text(json.dumps(seen))


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
