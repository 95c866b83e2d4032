"""Who watches a run: a progress line, a person's own callables, loggers. All see public values."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord

Advance = Callable[[int, str], None]
"""``advance(done, note)``."""


def describe(record: RoundRecord) -> str:
    """A round in a few words."""
    shown = [f"accuracy {100 * record.accuracy:.2f} %"] if record.accuracy is not None else []
    others = {k: v for k, v in record.metrics.items() if k not in ("accuracy", "loss")}
    shown += [f"{name} {value:.4g}" for name, value in others.items() if value is not None]
    if not shown and record.loss is not None:
        shown = [f"loss {record.loss:.4g}"]
    shown.append("ε ∞, not private" if record.epsilon is None else f"ε {record.epsilon:.3g}")
    return "  ".join(shown)


class Progress:
    """A watcher that shows each round: a bar on a terminal or in a notebook, lines elsewhere."""

    def __init__(self) -> None:
        self._shown = ExitStack()

    def start(self, run: Any) -> None:
        """What was chosen for the person, one line each; then the bar, as long as the run lasts."""
        for key, why in run.recipe.chosen.items():
            print(f"{key}: {why}", file=sys.stderr)
        self._advance = self._shown.enter_context(round_progress(run.recipe))

    def __call__(self, record: RoundRecord) -> None:
        self._advance(record.round, describe(record))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._shown.close()


def round_progress(recipe: Recipe) -> AbstractContextManager[Advance]:
    """Of a run's rounds; how long deployed ones take is not told, since it follows the cohort."""
    return progress(recipe.plan.rounds, "round", timed=recipe.mode == "simulation")


@contextmanager
def progress(total: int, unit: str, *, timed: bool = True) -> Iterator[Advance]:
    """``advance(done, note)`` moves a bar on a terminal, prints a line now and then elsewhere."""
    left = Pace(total).left if timed else lambda _: ""
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn(unit),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(unit, total=total, note="")

            def move(done: int, note: str) -> None:
                bar.update(task, completed=done, note=f"{note}  {left(done)}")

            yield move
        return
    said = time.perf_counter()

    def say(done: int, note: str) -> None:
        nonlocal said
        ending, now = left(done), time.perf_counter()
        if done == total or now - said >= 5.0:
            said = now
            print(f"{unit} {done}/{total}  {note}  {ending}", file=sys.stderr, flush=True)

    yield say


class Pace:
    """Time left by the steps so far, less the first, which compiles and says nothing of others."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._first: tuple[int, float] | None = None

    def left(self, done: int) -> str:
        """For people to read; nothing while there is nothing to tell from."""
        now = time.perf_counter()
        if self._first is None:
            self._first = (done, now)
            return ""
        steps, seconds = done - self._first[0], now - self._first[1]
        return f"{seconds / steps * (self.total - done):.0f} s left" if steps > 0 else ""
