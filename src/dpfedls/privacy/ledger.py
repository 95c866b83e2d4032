"""A durable account of what has been spent: paid and on disk before any noise is drawn.

The ledger is one SQLite file, append-only and hash-chained, kept apart from checkpoints: going
back to an old checkpoint, or crashing at any moment, never lowers what was spent.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.privacy import hash_chain
from dpfedls.privacy.account import Entry, Payment, read_account
from dpfedls.privacy.accountants import epsilon, rounds_for
from dpfedls.privacy.curve import epsilon_by_round
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.plan import PrivacyPlan


@runtime_checkable
class Ledger(Protocol):
    """Where a round is paid for, before it is released."""

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        """Pay for one release, or raise BudgetExhausted and leave no trace."""

    def check(self, event: RoundEvent) -> None:
        """Raise BudgetExhausted if another such round is not covered; pay nothing."""
        ...

    def epsilon(self) -> float:
        """What has been spent so far, at the plan's delta."""
        ...


class MemoryLedger:
    """A ledger that lasts as long as the process: for simulations that leave no files."""

    def __init__(self, plan: PrivacyPlan, budget: float | None = None) -> None:
        self.plan, self.budget, self.log = plan, budget, ""  # the digest of the run's log so far
        self.entries: dict[Entry, str] = {}  # and the log that each saw when it was paid
        self._affordable = _affordable(plan, budget)

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        entry = Entry(round_, event, nonce)
        if entry not in self.entries:  # else the same noise on the same sum: nothing is learned
            self.check(event)
        if self.entries.get(entry) != self.log:
            self._record(entry)
        self.entries[entry] = self.log

    def epsilon(self) -> float:
        """What has been spent so far, for people to watch: rounded up where T is large."""
        if len(self.entries) > self.plan.rounds:  # some were run again after crashes
            return spent_epsilon(self.plan, self.entries)
        shown = epsilon_by_round(self.plan)[len(self.entries)]
        return shown if self.budget is None else min(shown, self.budget)

    def check(self, event: RoundEvent) -> None:
        """Refuse another such round if the budget does not cover it."""
        if event != self.plan.round_event:
            raise InputError(
                f"the round did {event}, but the ledger was opened for {self.plan.round_event}; "
                "spend what the plan says, or open a ledger for another plan"
            )
        if len(self.entries) >= self._affordable:
            spent = spent_epsilon(self.plan, self.entries)
            raise BudgetExhausted(
                f"privacy budget exhausted: {len(self.entries)} rounds are paid, ε = {spent:.4g} "
                f"at δ = {self.plan.target_delta:.3g}; another round would exceed it. Training "
                "stopped; the last model is valid. To spend more, start a new run"
            )

    def _record(self, entry: Entry) -> None:
        """Nothing to do in memory."""


class SqliteLedger(MemoryLedger):
    """The durable ledger. One process at a time; every payment is on disk before ``spend`` ends."""

    def __init__(
        self, path: Path, plan: PrivacyPlan, budget: float | None = None, recipe: str = ""
    ) -> None:
        """``recipe`` is a digest of all that the run depends on beside its plan."""
        super().__init__(plan, budget)
        self.path, self.heads, self.payments = path, [""], []
        opening = {"format": 1, "plan": plan, "budget": budget, "recipe": recipe}
        self._connection = hash_chain.open_to_write(path, wait=0.2, alone=True)
        try:
            self.run = self._prepare(msgspec.json.decode(msgspec.json.encode(opening)))
        except BaseException:
            self._connection.close()
            raise

    @property
    def head(self) -> str:
        """The digest of everything up to now."""
        return self.heads[-1]

    def _prepare(self, opening: dict[str, Any]) -> str:
        """Open the account, or find it as it was opened; the run's own name."""
        rows = hash_chain.rows_after(self._connection)
        if not rows:
            # A name of its own tells this ledger from that of another run of the same recipe.
            run = secrets.token_hex(8)
            self._append(msgspec.json.encode(opening | {"run": run}))
            return run
        found = read_account(rows)
        if found.problems:
            raise InputError(
                f"{self.path}: {found.problems[0]}; the account of what was spent cannot be "
                "trusted: restore the file from a backup or start a new run"
            )
        if found.opening | opening != found.opening:
            raise InputError(
                f"{self.path} was opened for another plan, budget or recipe; a promise is not "
                "edited: start a new run in another folder"
            )
        self.heads, self.payments = found.heads, found.payments
        self.entries = {payment.entry: payment.log for payment in found.payments}
        return str(found.opening.get("run", ""))

    def _record(self, entry: Entry) -> None:
        self._append(msgspec.json.encode(Payment(entry.round, entry.event, entry.nonce, self.log)))

    def _append(self, payload: bytes) -> None:
        with hash_chain.transaction(self._connection):
            head = hash_chain.append(self._connection, self.head, payload)
        self.heads.append(head)

    def close(self) -> None:
        """Give the file free for others."""
        self._connection.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def spent_epsilon(plan: PrivacyPlan, entries: Collection[Entry]) -> float:
    """ε at the plan's delta of everything paid for."""
    return epsilon(list(Counter(e.event for e in entries).items()), plan.target_delta)


def _affordable(plan: PrivacyPlan, budget: float | None) -> int:
    """How many rounds the budget covers; without one, those of the plan."""
    if budget is None:
        return plan.rounds
    return rounds_for(budget, event=plan.round_event, delta=plan.target_delta)
