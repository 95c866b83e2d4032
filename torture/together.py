"""Kinds in processes of their own, several at once, and a word about each as it begins and ends."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torture.outcome import Outcome
from torture.process import start

_PAUSE, _MINUTE = 0.2, 60.0  # seconds between looks, and between words that it still goes on


def together(
    names: Sequence[str], work: Callable[[str], Outcome], at_once: int
) -> Iterator[tuple[str, Outcome]]:
    """What each came to, as soon as it has ended; a kind that dies is a violation."""
    waiting, running = list(names), dict[int, str]()
    begun, said = time.monotonic(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                child = start(lambda name=name: _told(work(name), Path(place) / name))
                running[child] = name
                _say(f"{name} …")
            ended = next((child for child in running if os.waitpid(child, os.WNOHANG)[0]), None)
            if ended is not None:
                name = running.pop(ended)
                found = _read(Path(place) / name)
                few = f"{found.cases:,} cases, {len(found.violations)} violations"
                _say(f"{name}: {few}, {found.seconds:.0f} s, {found.cpu:.0f} s of CPU")
                for violation in found.violations:
                    _say(f"  violation: {violation}")
                yield name, found
                continue
            if time.monotonic() - said > _MINUTE:
                said = time.monotonic()
                _say(
                    f"  after {(said - begun) / 60:.0f} min at work: {', '.join(running.values())}"
                )
            time.sleep(_PAUSE)


def _told(found: Outcome, path: Path) -> None:
    path.write_text(json.dumps(vars(found)), "utf-8")


def _read(path: Path) -> Outcome:
    if not path.is_file():
        return Outcome(violations=["it died: no outcome was written"])
    return Outcome(**json.loads(path.read_bytes()))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
