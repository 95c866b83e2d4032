"""What a ledger file says, read without writing to it or beside it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dpfedls.errors import InputError
from dpfedls.privacy import hash_chain
from dpfedls.privacy.bounded import LOG, require_size
from dpfedls.privacy.event import RoundEvent


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One payment. The nonce names the noise: the same nonce again is the same release again."""

    round: int
    event: RoundEvent
    nonce: str


class Payment(Entry, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An entry as a run's ledger keeps it, with the digest of the run's log when it was paid."""

    log: str = ""

    @property
    def entry(self) -> Entry:
        """What was paid for."""
        return Entry(self.round, self.event, self.nonce)


class Account(NamedTuple):
    """What a ledger file says: how it was opened, the payments, the digest after each entry."""

    opening: dict[str, Any]
    payments: list[Payment]
    heads: list[str]
    problems: list[str]

    @property
    def entries(self) -> list[Entry]:
        """What was paid for, each release once: it stands there again where it was run again."""
        return list(dict.fromkeys(payment.entry for payment in self.payments))


def read_ledger(path: Path) -> Account:
    """The account in a ledger file; neither it nor its folder is written to."""
    try:
        for part in (path, path.with_name(path.name + "-wal")):
            require_size(part, LOG)
        verdict, rows = hash_chain.read_rows(path)
    except InputError as error:
        return _no_account(str(error))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # damage reaches SQLite's own messages
        if isinstance(error, sqlite3.Error) and hash_chain.is_busy(error):
            return _no_account(f"{path.name} is in use: the run is going on; wait for it")
        return _no_account(f"{path.name} cannot be read as a ledger ({error})")
    if verdict != "ok":
        return _no_account(f"{path.name} fails SQLite's integrity check ({verdict})")
    if not rows:
        return _no_account(f"{path.name} holds no opening entry")
    return read_account(rows)


def read_account(rows: list[hash_chain.Row]) -> Account:
    """Follow the hash chain from the opening to the last payment."""
    heads, problem = hash_chain.follow(rows, [""])
    if problem:
        return _no_account(problem)
    try:
        opening = msgspec.json.decode(rows[0][1], type=dict[str, Any])
        paid = [msgspec.json.decode(payload, type=Payment) for _, payload, _ in rows[1:]]
    except (msgspec.MsgspecError, UnicodeDecodeError, InputError, RecursionError) as error:
        return _no_account(f"an entry is not a payment ({error})")
    return Account(opening, paid, heads, [])


def _no_account(problem: str) -> Account:
    return Account({}, [], [], [problem])
