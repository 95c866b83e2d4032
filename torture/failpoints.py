"""Death at named places: before and after each fsync, rename, payment and draw of noise.

The places are found by watching one undisturbed run through ``os.fsync``, ``os.replace``, SQLite's
commits and the noise; the product has no hooks for this.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from dpfedls import randomness
from torture import folders, invariants
from torture.outcome import Outcome
from torture.process import forked
from torture.watched import watch_noise

ROUNDS = 6
_HALF = "half of"  # the file's second half is not there yet


class Place(NamedTuple):
    """The n-th time that something is done, just before or just after it."""

    when: str
    what: str
    nth: int

    def __str__(self) -> str:
        return f"{self.when} {self.what} ({self.nth})"


Reached = Callable[[str, str, int | None], None]
"""``reached(when, what, handle)`` is called at every place; the handle is that of an open file."""


def failpoints(cases: int, seed: int) -> Outcome:
    """Each place in both modes; first, second and last time where it comes again."""
    found = Outcome()
    names = set()
    with tempfile.TemporaryDirectory() as place:
        for mode in folders.MODES[-cases:]:  # a single case is a deployed one
            whole = Path(place) / f"{mode}-whole"
            places = _places(whole, mode)
            names |= {(p.when, p.what) for p in places}
            step = max(1, -(-2 * len(places) // cases))
            for i, point in enumerate(places[seed % step :: step]):
                folder = Path(place) / f"{mode}-{i}"
                found.add(f"{mode}, {point}", _die_and_go_on(folder, mode, point, whole))
                shutil.rmtree(folder, ignore_errors=True)
    found.note = f"{len(names)} named places"
    return found


def _places(whole: Path, mode: str) -> list[Place]:
    """Where an undisturbed run can be made to die."""
    seen: list[Place] = []
    trace = whole.with_suffix(".places")

    def write(when: str, what: str, handle: int | None) -> None:
        with trace.open("a") as file:
            file.write(f"{when}|{what}\n")

    watch_noise(whole.with_suffix(".noise"))
    answer = forked(_instrumented(folders.started(whole, mode, ROUNDS), write))
    if answer.code:
        raise RuntimeError(f"an undisturbed run fails: {answer.err}")
    lines = trace.read_text().splitlines()
    for line in dict.fromkeys(lines):
        when, what = line.split("|")
        often = lines.count(line)
        seen += [Place(when, what, nth) for nth in sorted({1, 2, often}) if nth <= often]
    return seen


def _die_and_go_on(folder: Path, mode: str, point: Place, whole: Path) -> list[str]:
    noise = folder.with_suffix(".noise")
    watch_noise(noise)
    count = 0

    def reached(when: str, what: str, handle: int | None) -> None:
        nonlocal count
        count += (when, what) == (point.when, point.what)
        if count == point.nth:
            if when == _HALF and handle is not None:
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    answer = forked(_instrumented(folders.started(folder, mode, ROUNDS), reached))
    problems = [] if answer.killed else ["the place was not reached"]
    problems += invariants.at_any_moment(folder, noise, mode)
    problems += forked(folders.continued(folder, mode, ROUNDS)).problems(0, 3)
    return problems + invariants.at_the_end(folder, noise, mode, whole, ROUNDS)


def _instrumented(work: Callable[[], None], reached: Reached) -> Callable[[], None]:
    """The work, with everything that reaches a disk wrapped in this process alone."""

    def instrumented() -> None:
        fsync, replace, connect = os.fsync, os.replace, sqlite3.connect

        def watched_fsync(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            what = f"fsync of {_name(path)}"
            if path.endswith(".part"):  # a new file: nothing of it was promised yet
                reached(_HALF, what, handle)
            reached("before", what, handle)
            fsync(handle)
            reached("after", what, handle)

        def watched_replace(source: Any, target: Any) -> None:
            what = f"rename to {_name(target)}"
            reached("before", what, None)
            replace(source, target)
            reached("after", what, None)

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if sql != "COMMIT":
                    return super().execute(sql, *values)
                reached("before", "payment", None)
                done = super().execute(sql, *values)
                reached("after", "payment", None)
                return done

        os.fsync, os.replace = watched_fsync, watched_replace  # type: ignore[assignment]
        sqlite3.connect = lambda *a, **k: connect(*a, **(k | {"factory": Connection}))  # type: ignore[assignment]
        for kind in (randomness.SeededStreams, randomness.SystemStreams):
            kind.noise = _watched_noise(kind.noise, reached)  # type: ignore[method-assign]
        work()

    return instrumented


def _watched_noise(real: Any, reached: Reached) -> Any:
    def noise(self: Any, round_: int) -> randomness.Noise:
        draw = real(self, round_)

        def watched(dim: int, device: Any) -> Any:
            reached("before", "noise", None)
            drawn = draw(dim, device)
            reached("after", "noise", None)
            return drawn

        return watched

    return noise


def _name(path: Any) -> str:
    """A file by its own name, whatever its temporary one; a folder as what it is."""
    name = re.sub(r"^\.(.+)\.[0-9a-f]{16}\.part$", r"\1", os.path.basename(path))
    return name if "." in name or name == "checkpoint" else "the folder"
