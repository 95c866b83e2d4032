"""A durable account of what has been spent: paid and on disk before any noise is drawn.

The ledger is one SQLite file, append-only and hash-chained, kept apart from checkpoints: going
back to an old checkpoint, or crashing at any moment, never lowers what was spent.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

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
        self.plan, self.budget = plan, budget
        self.entries: dict[Entry, None] = {}  # an ordered set
        self._affordable = _affordable(plan, budget)

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        entry = Entry(round_, event, nonce)
        if entry in self.entries:  # the same noise on the same sum: nothing new is learned
            return
        self.check(event)
        self._record(entry)
        self.entries[entry] = None

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
                f"at δ = {self.plan.target_delta:.3g}, and another would be too much; nothing more "
                "was released and the last model stands. A larger budget is a new promise to "
                "people: start a new run for it"
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
        self.path, self.heads = path, [""]
        opening = {"format": 1, "plan": plan, "budget": budget, "recipe": recipe}
        self._connection = _connect(path)
        try:
            self._prepare(msgspec.json.decode(msgspec.json.encode(opening)))
        except BaseException:
            self._connection.close()
            raise

    @property
    def head(self) -> str:
        """The digest of everything up to now."""
        return self.heads[-1]

    def _prepare(self, opening: dict[str, Any]) -> None:
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
            found = check_chain(rows)
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
            self.entries, self.heads = dict.fromkeys(found.entries), found.heads
        else:
            # A name of its own tells this ledger from that of another run of the same recipe.
            self._append(msgspec.json.encode(opening | {"run": secrets.token_hex(8)}))

    def _record(self, entry: Entry) -> None:
        self._append(msgspec.json.encode(entry))

    def _append(self, payload: bytes) -> None:
        head = _link(self.head, payload)
        with self._connection:
            self._connection.execute(
                "INSERT INTO entries (payload, digest) VALUES (?, ?)", (payload, head)
            )
        self.heads.append(head)

    def close(self) -> None:
        """Give the file free for others."""
        self._connection.close()

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Account(NamedTuple):
    """What a ledger file says: how it was opened, the payments, the digest after each entry."""

    opening: dict[str, Any]
    entries: list[Entry]
    heads: list[str]
    problems: list[str]


def read_ledger(path: Path) -> Account:
    """The account in a ledger file, without writing to it."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
        try:
            intact = connection.execute("PRAGMA integrity_check").fetchone()[0]
            rows = _rows(connection)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # damage reaches SQLite's own messages
        if "locked" in str(error):
            return Account({}, [], [], [f"{path.name} is in use: the run is going on; wait for it"])
        return Account({}, [], [], [f"{path.name} cannot be read as a ledger ({error})"])
    if intact != "ok":
        return Account({}, [], [], [f"{path.name} fails SQLite's integrity check ({intact})"])
    if not rows:
        return Account({}, [], [], [f"{path.name} holds no opening entry"])
    return check_chain(rows)


def check_chain(rows: list[tuple[int, bytes, str]]) -> Account:
    """Follow the hash chain from the opening to the last payment."""
    heads = [""]
    for expected, (seq, payload, digest) in enumerate(rows, start=1):
        heads.append(_link(heads[-1], payload) if isinstance(payload, bytes) else "")
        if seq != expected or heads[-1] != digest:
            problem = f"entry {expected} breaks the hash chain: it was altered or removed"
            return Account({}, [], [], [problem])
    entries = [msgspec.json.decode(payload, type=Entry) for _, payload, _ in rows[1:]]
    return Account(msgspec.json.decode(rows[0][1]), entries, heads, [])


def spent_epsilon(plan: PrivacyPlan, entries: Collection[Entry]) -> float:
    """ε at the plan's delta of everything paid for."""
    return epsilon(list(Counter(e.event for e in entries).items()), plan.target_delta)


def _affordable(plan: PrivacyPlan, budget: float | None) -> int:
    """How many rounds the budget covers; without one, those of the plan."""
    if budget is None:
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
