"""kill -9 at random moments of a run, again and again until it is finished."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path

from torture import folders, invariants
from torture.outcome import Outcome
from torture.process import forked
from torture.watched import watch_noise


def kills(cases: int, seed: int) -> Outcome:
    """Half of the kills on simulated runs, half on deployed ones."""
    found, rng = (
        Outcome(note="20-round runs, both modes, killed until finished"),
        random.Random(seed),
    )
    runs = 0
    with tempfile.TemporaryDirectory() as place:
        for mode in folders.MODES:
            whole, seconds = _whole(Path(place), mode)
            target = found.cases + max(1, cases // 2)
            while found.cases < target:
                folder = Path(place) / f"{mode}-{runs}"
                _kill_until_done(found, rng, folder, mode, whole, seconds)
                shutil.rmtree(folder)
                runs += 1
    found.note += f" ({runs} runs)"
    return found


def _whole(place: Path, mode: str) -> tuple[Path, float]:
    """An undisturbed run, and how long it takes."""
    whole = place / f"{mode}-whole"
    watch_noise(place / f"{mode}-whole.noise")
    begun = time.perf_counter()
    answer = forked(folders.started(whole, mode))
    if answer.code:
        raise RuntimeError(f"an undisturbed run fails: {answer.err}")
    return whole, time.perf_counter() - begun


def _kill_until_done(
    found: Outcome, rng: random.Random, folder: Path, mode: str, whole: Path, seconds: float
) -> None:
    noise = folder.with_suffix(".noise")
    watch_noise(noise)
    while True:
        moment = rng.uniform(0, seconds * rng.choice((0.3, 0.6, 1.0)))
        answer = forked(folders.continued(folder, mode), kill_after=moment)
        case = f"{mode}, killed after {moment:.3f} s"
        if answer.killed:
            found.add(case, invariants.at_any_moment(folder, noise, mode))
            continue
        problems = answer.problems(0, 3)  # lost rounds are paid for: the budget may end the run
        problems += invariants.at_the_end(folder, noise, mode, whole)
        found.violations += [f"{case}, at the end: {problem}" for problem in problems]
        return
