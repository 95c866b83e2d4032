"""The power goes: what was not synced may be there, or not, or in part.

One run is written down step by step by the layer of shim.c. Then, for many moments of it, a disk is
made that a power cut could have left: of each file what was synced, and of the writes since then
none, all, some, or some with the last one torn; of each folder's changes since it was synced a
first part, as journaling file systems keep them.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torture import folders, invariants, shim
from torture.outcome import Outcome
from torture.process import forked
from torture.watched import watch_noise

ROUNDS = 4
_HEAD = struct.Struct("<ciiqq")


class Step(NamedTuple):
    """One thing done to the disk; ``N`` is a draw of noise."""

    kind: str  # Write, Sync, Truncate, Rename, Unlink, Create, Make a folder, Noise
    path: str
    target: str
    offset: int
    data: bytes


@dataclass
class File:
    """Bytes that are safe, and writes since then."""

    safe: bytearray = field(default_factory=bytearray)
    since: list[Step] = field(default_factory=list)


@dataclass
class Disk:
    """Names as the processes see them, names that are safe, and changes of names since."""

    names: dict[str, File] = field(default_factory=dict)
    safe: dict[str, File] = field(default_factory=dict)
    since: list[tuple[Step, File]] = field(default_factory=list)

    def take(self, step: Step) -> None:
        """One more step."""
        if step.kind in "WT":
            self.names[step.path].since.append(step)
        elif step.kind == "S" and step.path in self.names:
            file = self.names[step.path]
            file.safe, file.since = _applied(file.safe, file.since), []
        elif step.kind == "S":
            self._sync_folder(step.path)
        elif step.kind in "CRU":
            file = File() if step.kind == "C" else self.names[step.path]
            _rename(self.names, step, file)
            self.since.append((step, file))

    def _sync_folder(self, path: str) -> None:
        here = [change for change in self.since if os.path.dirname(change[0].path) == path]
        for step, file in here:
            _rename(self.safe, step, file)
        self.since = [change for change in self.since if change not in here]

    def after_power_cut(self, rng: random.Random) -> dict[str, bytes]:
        """A state that the disk may be found in."""
        names = dict(self.safe)
        for step, file in self.since[: rng.choice((0, len(self.since), _part(self.since, rng)))]:
            _rename(names, step, file)
        luck = rng.choice(("none", "all", "first", "some"))
        return {path: _survived(file, luck, rng) for path, file in names.items()}


def power(cases: int, seed: int) -> Outcome:
    """Moments of a run in each mode, each with a state of the disk drawn at random."""
    if not shim.available():
        return Outcome(note="not tried: no C compiler here")
    found, rng = Outcome(note="disks as a power cut may leave them"), random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        for mode in folders.MODES[-cases:]:  # a single case is a deployed one
            whole = Path(place) / mode / "run"
            steps = _written_down(whole, mode)
            for i in range(max(1, cases // 2)):
                moment = rng.randrange(1, len(steps) + 1)
                folder = Path(place) / f"{mode}-{i}" / "run"
                noise = _restored(folder, whole, steps[:moment], rng)
                watch_noise(noise)
                problems = invariants.at_any_moment(folder, noise, mode)
                problems += forked(folders.continued(folder, mode, ROUNDS)).problems(0, 3)
                problems += invariants.at_the_end(folder, noise, mode, whole, ROUNDS)
                found.add(f"{mode}, power cut after step {moment} of {len(steps)}", problems)
                shutil.rmtree(folder.parent)
    return found


def _written_down(folder: Path, mode: str) -> list[Step]:
    folder.parent.mkdir()
    trace = folder.parent / "trace"
    watch_noise(folder.parent / "noise")  # below the folder that is watched: it is in the trace

    def work() -> None:
        handle = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        shim.write_down(folder.parent, handle)
        folders.started(folder, mode, ROUNDS)()

    answer = forked(work)
    if answer.code:
        raise RuntimeError(f"an undisturbed run fails: {answer.err}")
    return [step for step in _steps(trace.read_bytes()) if not step.path.endswith("-shm")]


def _steps(raw: bytes) -> Iterator[Step]:
    at = 0
    while at < len(raw):
        kind, first, second, offset, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        path, target = raw[at : at + first].decode(), raw[at + first : at + first + second].decode()
        at += first + second
        has_data = kind == b"W"
        yield Step(kind.decode(), path, target, offset, raw[at : at + size] if has_data else b"")
        at += size if has_data else 0


def _restored(folder: Path, whole: Path, steps: list[Step], rng: random.Random) -> Path:
    """Make the folder as the power cut left it; the noise drawn until then stays known."""
    folder.parent.mkdir()
    disk, noise = Disk(), whole.parent / "noise"
    drawn = bytearray()
    for step in steps:
        if step.path == str(noise):
            drawn += step.data
        elif step.path.startswith(f"{whole}"):
            disk.take(step)
    for path, content in disk.after_power_cut(rng).items():
        target = folder / Path(path).relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder.parent / "noise").write_bytes(drawn)
    return folder.parent / "noise"


def _rename(names: dict[str, File], step: Step, file: File) -> None:
    if step.kind == "C":
        names[step.path] = file
        return
    names.pop(step.path, None)
    if step.kind == "R":
        names[step.target] = file


def _survived(file: File, luck: str, rng: random.Random) -> bytes:
    kept = list(file.since)
    if luck == "none":
        kept = []
    elif luck == "first":
        kept = kept[: _part(kept, rng)]
        if kept and kept[-1].kind == "W":  # disks write whole sectors, not whole requests
            sectors = rng.randint(0, len(kept[-1].data) // 512)
            kept[-1] = kept[-1]._replace(data=kept[-1].data[: 512 * sectors])
    elif luck == "some":
        kept = [step for step in kept if rng.random() < 0.5]
    return bytes(_applied(file.safe, kept))


def _applied(content: bytearray, steps: list[Step]) -> bytearray:
    content = bytearray(content)
    for step in steps:
        if step.kind == "T":
            content = content[: step.offset].ljust(step.offset, b"\0")
        else:
            content = content.ljust(step.offset, b"\0")
            content[step.offset : step.offset + len(step.data)] = step.data
    return content


def _part(items: list, rng: random.Random) -> int:
    return rng.randint(0, len(items))
