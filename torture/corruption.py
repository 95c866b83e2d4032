"""Files of runs damaged, cut, swapped and put back: noticed in one line, or without any harm."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torture import folders, invariants
from torture.outcome import Outcome
from torture.process import command, forked
from torture.watched import watch_noise

ROUNDS, HALF = 6, 3
_LEDGER = "ledger.sqlite"
_DIGITS = 1e-6


class Original(NamedTuple):
    """A run before it is damaged, and the same at earlier and at another time."""

    folder: Path
    mode: str
    finished: Path  # the end of an undisturbed run of the same recipe and seed
    older: Path
    other: Path


Damage = Callable[[Path, Original, random.Random], str]
"""``damage(copy, original, rng)`` damages the copy and says how."""


def corruption(cases: int, seed: int) -> Outcome:
    """Every kind of damage in turn, over finished and half-finished runs of both modes."""
    found, rng = Outcome(), random.Random(seed)
    kinds: list[Damage] = [_flip, _flip, _cut, _flip, _cut, _zero, _flip, _swap, _old, _remove]
    bits = 0
    with tempfile.TemporaryDirectory() as place:
        watch_noise(Path(place) / "noise")
        originals = _originals(Path(place))
        for case in range(cases):
            original = originals[case % len(originals)]
            copy = shutil.copytree(original.folder, Path(place) / "copy")
            damage = kinds[case // len(originals) % len(kinds)]
            bits += damage in (_flip, _cut)
            how = damage(copy, original, rng)
            found.add(f"{original.folder.name}: {how}", _problems(copy, original))
            shutil.rmtree(copy)
    found.note = f"{bits:,} flips and cuts; the rest zeroed, swapped, of an earlier day or removed"
    return found


def _originals(place: Path) -> list[Original]:
    made = []
    for mode in folders.MODES:
        half, older, whole, other = (
            place / f"{mode}-{name}" for name in ("half", "older", "whole", "other")
        )
        _killed_after(half, mode, HALF)
        _killed_after(older, mode, 1)
        shutil.copytree(half, whole)
        for folder in (whole, other):
            answer = forked(folders.continued(folder, mode, ROUNDS))
            if answer.code:
                raise RuntimeError(f"an undisturbed run fails: {answer.err}")
        # One run at three times: the older half is of the same ledger.
        made += [
            Original(half, mode, whole, older, other),
            Original(whole, mode, whole, half, other),
        ]
    return made


def _killed_after(folder: Path, mode: str, rounds: int) -> None:
    """A run that died just after a checkpoint was on disk, its write-ahead log still there."""

    def work() -> None:
        from dpfedls.runs.folder import RunFolder

        record = RunFolder.record

        def dying(self, line, state) -> None:
            record(self, line, state)
            if state.round == rounds:
                os.kill(os.getpid(), signal.SIGKILL)

        RunFolder.record = dying  # type: ignore[method-assign]
        folders.started(folder, mode, ROUNDS)()

    if not forked(work).killed:
        raise RuntimeError("the run did not die")


def _problems(copy: Path, original: Original) -> list[str]:
    verdict = folders.verified(copy)
    problems = verdict.problems
    if verdict.valid:
        problems += _harm(copy, original, verdict)
    answer = forked(command("resume", copy))
    problems += answer.problems()
    if answer.code not in (0, 3):
        return problems
    verdict = folders.verified(copy)
    if not verdict.valid:
        problems.append(f"resume went on to a run that does not verify: {verdict.reasons}")
    return problems + _harm(copy, original, verdict)


def _harm(copy: Path, original: Original, verdict: folders.Verdict) -> list[str]:
    """What a person who trusts the folder would be wrong about."""
    problems = []
    if not folders.paid(original.folder) <= folders.paid(copy):
        problems.append("payments were forgotten")
    if verdict.epsilon < folders.epsilon(len(folders.paid(original.folder))) * (1 - 1e-3):
        problems.append(f"ε is lower: {verdict.epsilon:.4g}")
    stated = json.loads((copy / "privacy.json").read_bytes())["epsilon"]
    if stated < verdict.epsilon * (1 - _DIGITS):
        problems.append(f"the statement says ε = {stated:.4g}, spent is {verdict.epsilon:.4g}")
    seeded = original.mode == "simulation"
    lines = folders.log_lines(copy)
    known = folders.log_lines(original.finished if seeded else original.folder)
    if seeded:  # from an older checkpoint the same rounds are run again: ε may show what is paid
        problems += invariants.log_problems(lines, known)
    elif lines[: len(known)] != known:
        problems.append("lines of the log are not those that were written")
    ended = seeded or len(known) == ROUNDS
    if ended and folders.weights(copy) != folders.weights(original.finished):
        problems.append("another model")
    return problems


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _chosen(copy: Path, rng: random.Random) -> tuple[Path, bytearray]:
    path = rng.choice([path for path in _files(copy) if path.stat().st_size])
    return path, bytearray(path.read_bytes())


def _flip(copy: Path, original: Original, rng: random.Random) -> str:
    path, raw = _chosen(copy, rng)
    at, bit = rng.randrange(len(raw)), rng.randrange(8)
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    return f"bit {bit} of byte {at} of {path.name} flipped"


def _cut(copy: Path, original: Original, rng: random.Random) -> str:
    path, raw = _chosen(copy, rng)
    size = rng.randrange(len(raw))
    path.write_bytes(raw[:size])
    return f"{path.name} cut to {size} of {len(raw)} bytes"


def _zero(copy: Path, original: Original, rng: random.Random) -> str:
    path, raw = _chosen(copy, rng)
    at = rng.randrange(len(raw))
    size = len(raw[at : at + 512])
    raw[at : at + size] = bytes(size)
    path.write_bytes(raw)
    return f"{size} bytes of {path.name} zeroed from {at}"


def _swap(copy: Path, original: Original, rng: random.Random) -> str:
    """Some files of another run of the same recipe; with its ledger goes the log beside it."""
    return "from another run: " + _taken(copy, original.other, rng)


def _old(copy: Path, original: Original, rng: random.Random) -> str:
    return "from an earlier day: " + _taken(copy, original.older, rng)


def _taken(copy: Path, source: Path, rng: random.Random) -> str:
    names = [str(path.relative_to(source)) for path in _files(source)]
    names = [name for name in names if not name.startswith((f"{_LEDGER}-", "recipe"))]
    # Ledger, log and checkpoint together are a run put back as a whole, which nobody can tell from
    # one that was stopped then, unless it had ended.
    some = rng.sample(names, rng.randint(1, 3 if (copy / "privacy.json").is_file() else 2))
    for name in some:
        if name == _LEDGER:
            for path in (*copy.glob(f"{_LEDGER}*"),):
                path.unlink()
            for path in source.glob(f"{_LEDGER}*"):
                shutil.copy(path, copy)
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / name, copy / name)
    return ", ".join(some)


def _remove(copy: Path, original: Original, rng: random.Random) -> str:
    some = rng.sample(_files(copy), rng.randint(1, 2))
    for path in some:
        path.unlink()
    return "removed: " + ", ".join(path.name for path in some)
