"""A released round is written while the next one trains, and is on disk before that is paid for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.ledger import Ledger


class Writer:
    """One thread that writes; whoever needs what was written waits for it first."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "dpfedls-writer")
        self._last: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Start to write, once what was begun before is written."""
        self.finish()
        self._last = self._thread.submit(write)

    def finish(self) -> None:
        """Wait until it is written; raise what the disk said, once."""
        last, self._last = self._last, None
        if last is not None:
            last.result()


class WrittenFirst:
    """A ledger that takes no payment before the last release is written."""

    def __init__(self, ledger: Ledger, writer: Writer) -> None:
        self.ledger, self.writer = ledger, writer

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        """Pay, or raise BudgetExhausted and leave no trace."""
        self.writer.finish()
        self.ledger.spend(event, round_, nonce)

    def check(self, event: RoundEvent) -> None:
        """Refuse another such round if the budget does not cover it."""
        self.ledger.check(event)

    def epsilon(self) -> float:
        """What this run has spent."""
        return self.ledger.epsilon()
