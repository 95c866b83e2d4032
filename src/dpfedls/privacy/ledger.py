"""A durable account of what has been spent: paid and on disk before any noise is drawn.

The ledger is one SQLite file, append-only and hash-chained, kept apart from checkpoints: going
back to an old checkpoint, or crashing at any moment, never lowers what was spent.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.privacy.accountants import epsilon, rounds_for
from dpfedls.privacy.curve import epsilon_by_round
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.plan import PrivacyPlan


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One payment. The nonce names the noise: the same nonce again is the same release again."""

    round: int
    event: RoundEvent
    nonce: str


@runtime_checkable
class Ledger(Protocol):
    """Where a round is paid for, before it is released."""

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        """Pay for one release, or raise BudgetExhausted and leave no trace."""
        ...

    def epsilon(self) -> float:
        """What has been spent so far, at the plan's delta."""
        ...


class MemoryLedger:
    """A ledger that lasts as long as the process: for simulations that leave no files."""

    def __init__(self, plan: PrivacyPlan, budget: float | None = None) -> None:
        self.plan = plan
        self.entries: dict[Entry, None] = {}  # an ordered set
        self._affordable = _affordable(plan, budget)

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        entry = Entry(round_, event, nonce)
        if entry in self.entries:  # the same noise on the same sum: nothing new is learned
            return
        self._check(event)
        self._record(entry)
        self.entries[entry] = None

    def epsilon(self) -> float:
        return spent_epsilon(self.plan, self.entries)

    def _check(self, event: RoundEvent) -> None:
        if event != self.plan.round_event:
            raise InputError(
                f"the round did {event}, but the ledger was opened for {self.plan.round_event}; "
                "spend what the plan says, or open a ledger for another plan"
            )
        if len(self.entries) >= self._affordable:
            raise BudgetExhausted(
                f"privacy budget exhausted: {len(self.entries)} rounds are paid, ε = "
                f"{self.epsilon():.4g} at δ = {self.plan.target_delta:.3g}, and another would be "
                "too much; nothing more was released and the last model stands. A larger budget "
                "is a new promise to people: start a new run for it"
            )

    def _record(self, entry: Entry) -> None:
        """Nothing to do in memory."""


class SqliteLedger(MemoryLedger):
    """The durable ledger. One process at a time; every payment is on disk before ``spend`` ends."""

    def __init__(self, path: Path, plan: PrivacyPlan, budget: float | None = None) -> None:
        super().__init__(plan, budget)
        self.path = path
        opening = msgspec.json.encode({"format": 1, "plan": plan, "budget": budget})
        self._connection = _connect(path)
        try:
            self._prepare(opening)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, opening: bytes) -> None:
        try:
            self._connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            raise InputError(
                f"{self.path} is in use by another process; two writers could both spend the last "
                "of the budget: wait for it to end, or stop it"
            ) from error
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{self.path} is not a ledger ({error}); what was spent cannot be known from it: "
                "restore the file from a backup or start a new run"
            ) from error
        rows = _rows(self._connection)
        if rows:
            problems, entries = check_chain(rows)
            if problems:
                raise InputError(
                    f"{self.path}: {problems[0]}; the account of what was spent cannot be trusted: "
                    "restore the file from a backup or start a new run"
                )
            if rows[0][1] != opening:
                raise InputError(
                    f"{self.path} was opened for another plan or budget; a promise is not edited: "
                    "start a new run in another folder"
                )
            self.entries = dict.fromkeys(entries)
            self.head = rows[-1][2]
        else:
            self.head = ""
            self._append(opening)

    def _record(self, entry: Entry) -> None:
        self._append(msgspec.json.encode(entry))

    def _append(self, payload: bytes) -> None:
        head = _link(self.head, payload)
        with self._connection:
            self._connection.execute(
                "INSERT INTO entries (payload, digest) VALUES (?, ?)", (payload, head)
            )
        self.head = head

    def close(self) -> None:
        """Give the file free for others."""
        self._connection.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def read_ledger(path: Path) -> tuple[dict[str, Any], list[Entry], list[str], str]:
    """Opening, entries, problems and head of a ledger file, without writing to it."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
        try:
            intact = connection.execute("PRAGMA integrity_check").fetchone()[0]
            rows = _rows(connection)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # damage reaches SQLite's own messages
        return {}, [], [f"{path.name} cannot be read as a ledger ({error})"], ""
    problems, entries = check_chain(rows)
    if intact != "ok":
        problems.insert(0, f"{path.name} fails SQLite's integrity check ({intact})")
    if not rows:
        return {}, [], [*problems, f"{path.name} holds no opening entry"], ""
    return msgspec.json.decode(rows[0][1]) if not problems else {}, entries, problems, rows[-1][2]


def check_chain(rows: list[tuple[int, bytes, str]]) -> tuple[list[str], list[Entry]]:
    """Follow the hash chain; the problems found and the payments recorded."""
    problems, entries, head = [], [], ""
    for expected, (seq, payload, digest) in enumerate(rows, start=1):
        head = _link(head, payload) if isinstance(payload, bytes) else ""
        if seq != expected or head != digest:
            problems.append(f"entry {expected} breaks the hash chain: it was altered or removed")
            break
        if expected > 1:
            entries.append(msgspec.json.decode(payload, type=Entry))
    return problems, entries


def spent_epsilon(plan: PrivacyPlan, entries: Collection[Entry]) -> float:
    """ε at the plan's delta of everything paid for."""
    if len(entries) <= plan.rounds and all(e.event == plan.round_event for e in entries):
        return epsilon_by_round(plan)[len(entries)]
    return epsilon(list(Counter(e.event for e in entries).items()), plan.target_delta)


def _affordable(plan: PrivacyPlan, budget: float | None) -> int:
    """How many rounds the budget covers; without one, those of the plan."""
    if budget is None or not plan.is_private:
        return plan.rounds
    return rounds_for(budget, event=plan.round_event, delta=plan.target_delta)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0.2)


# EXCLUSIVE keeps the lock for the life of the connection; FULL waits for the disk at each commit.
_SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL, digest TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
COMMIT;
"""


def _rows(connection: sqlite3.Connection) -> list[tuple[int, bytes, str]]:
    return list(connection.execute("SELECT seq, payload, digest FROM entries ORDER BY seq"))


def _link(head: str, payload: bytes) -> str:
    return hashlib.sha256(head.encode() + b"\n" + payload).hexdigest()
