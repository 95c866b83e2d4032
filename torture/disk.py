"""Disks that are full, fail, may not be written, or take no large file."""

from __future__ import annotations

import ctypes
import errno
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torture import folders, invariants, shim
from torture.outcome import Outcome
from torture.process import Answer, command, forked
from torture.watched import watch_noise

ROUNDS = 3
_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


def disk(cases: int, seed: int) -> Outcome:
    """Afterwards the disk is well again, and the run goes on to its end."""
    found = Outcome()
    tried = []
    own_mounts()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        wholes = {mode: place / f"{mode}-whole" for mode in folders.MODES}
        for mode, whole in wholes.items():
            watch_noise(whole.with_suffix(".noise"))
            forked(folders.started(whole, mode, ROUNDS))
        trial = _Trial(found, place, wholes)
        if shim.available():
            tried.append("ENOSPC and EIO at every n-th write")
            _failing_writes(trial, cases, seed)
        tried.append("file size limits")
        for size in range(1_000, 40_000, max(1, 40_000 // max(1, cases // 10))):
            trial.run(f"no file beyond {size} bytes", lambda work, s=size: _small_files(work, s))
        if _read_only(trial):
            tried.append("a read-only disk")
        if _tiny_disks(trial, cases):
            tried.append("a tiny tmpfs")
    found.note = ", ".join(tried)
    return found


class _Trial:
    """Runs that fail, and that go on once the cause is gone."""

    def __init__(self, found: Outcome, place: Path, wholes: dict[str, Path]) -> None:
        self.found, self.place, self.wholes = found, place, wholes

    def run(
        self, case: str, hindered: Callable[[Callable[[], None]], object], place: Path | None = None
    ) -> Answer:
        """Start a run while something is wrong with the disk, then go on without."""
        mode = folders.MODES[self.found.cases % 2]
        folder = (place or self.place) / f"run-{self.found.cases}"
        noise = self.place / f"run-{self.found.cases}.noise"
        watch_noise(noise)
        answer = forked(lambda: hindered(folders.started(folder, mode, ROUNDS)))
        problems = answer.problems(0, 1)
        problems += invariants.at_any_moment(folder, noise, mode) if answer.code != 0 else []
        if place is None:
            problems += forked(folders.continued(folder, mode, ROUNDS)).problems(0, 3)
            problems += invariants.at_the_end(folder, noise, mode, self.wholes[mode], ROUNDS)
        self.found.add(f"{mode}, {case}", problems)
        return answer


def _failing_writes(trial: _Trial, cases: int, seed: int) -> None:
    """Each write, rename or fsync of a run in turn, or as many as fit."""
    total = _count(trial)
    step = max(1, 2 * total // max(1, cases))
    for i, nth in enumerate(range(1 + seed % step, total + 1, step)):
        for error in (errno.ENOSPC, errno.EIO):
            for_good = i % 2 == (error == errno.EIO)
            how = "and all after it" if for_good else "alone"

            def hindered(work, nth=nth, error=error, for_good=for_good) -> None:
                shim.fail_write(trial.place / "run-", nth, error, for_good)
                work()

            trial.run(f"{errno.errorcode[error]} at write {nth} {how}", hindered)


def _count(trial: _Trial) -> int:
    """How many writes an undisturbed run makes."""
    folder, count = trial.place / "counted", trial.place / "count"
    watch_noise(trial.place / "counted.noise")

    def work() -> None:
        shim.count_writes(folder)
        try:
            folders.started(folder, "deployed", ROUNDS)()
        finally:
            count.write_text(str(shim.writes()))

    forked(work)
    return int(count.read_text())


def _small_files(work: Callable[[], None], size: int) -> None:
    # Holds for what we write down ourselves too: noise and stderr stay below.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    work()


def _read_only(trial: _Trial) -> bool:
    """Nobody may write here: whatever writes says so in one line, and verify finds all in order."""
    for mode, whole in trial.wholes.items():
        with _mounted(trial.place / "fixed", 10_000) as mounted:
            if not mounted:
                return False
            folder = shutil.copytree(whole, trial.place / "fixed" / "run")
            remount = ["mount", "-o", "remount,ro", str(folder.parent)]
            subprocess.run(remount, check=True, capture_output=True)
            page = folder.parent / "page.html"
            for words in (("resume", folder), ("report", folder, "--out", page)):
                problems = forked(command(*words)).problems(1, 2)
                trial.found.add(f"{mode}, {words[0]} on a read-only disk", problems)
            verdict = folders.verified(folder)
            problems = verdict.problems + ([] if verdict.valid else [verdict.reasons])
            trial.found.add(f"{mode}, verify on a read-only disk", problems)
    return True


def _tiny_disks(trial: _Trial, cases: int) -> bool:
    """Whether a file system could be mounted."""
    for size in range(8, 200, max(8, 2_000 // max(1, cases))):
        with _mounted(trial.place / "tiny", size) as mounted:
            if not mounted:
                return False
            trial.run(f"a disk of {size} kB", lambda work: work(), trial.place / "tiny")
    return True


def own_mounts() -> None:
    """What this process mounts from now on is its own, and gone with it and its children.

    Without the right to do so there is none to mount either.
    """
    if ctypes.CDLL(None).unshare(_NEW_MOUNTS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@contextmanager
def _mounted(place: Path, kilobytes: int) -> Iterator[bool]:
    place.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "torture", str(place)]
    mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)
