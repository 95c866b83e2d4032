"""An append-only, hash-chained SQLite file: what every durable account is kept in.

Each entry carries a SHA-256 of itself and all before it, so nothing can be altered or removed
unnoticed. Reading never writes beside the file: evidence may lie in a folder that is read-only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from dpfedls.errors import InputError
from dpfedls.privacy.durable import PRIVATE, sync_folder

Row: TypeAlias = tuple[int, bytes, str]


class Followed(NamedTuple):
    """The digest after each entry, and what breaks the chain, if anything does."""

    heads: list[str]
    problem: str | None


def follow(rows: list[Row], heads: list[str]) -> Followed:
    """Follow the chain through further rows; ``heads`` are the digests so far, "" before any."""
    heads = list(heads)
    for seq, payload, digest in rows:
        expected = len(heads)
        heads.append(link(heads[-1], payload) if isinstance(payload, bytes) else "")
        if seq != expected or heads[-1] != digest:
            return Followed(
                [""], f"entry {expected} breaks the hash chain: it was altered or removed"
            )
    return Followed(heads, None)


def rows_after(connection: sqlite3.Connection, seq: int = 0) -> list[Row]:
    """The entries after that one, in order."""
    # As bytes: damage may leave text that is none, which SQLite does not hand over.
    found = connection.execute(
        "SELECT seq, CAST(payload AS BLOB), CAST(digest AS BLOB) FROM entries WHERE seq > ? "
        "ORDER BY seq",
        (seq,),
    )
    return [(n, payload, (digest or b"").decode(errors="replace")) for n, payload, digest in found]


def append(connection: sqlite3.Connection, head: str, payload: bytes) -> str:
    """Add an entry to the transaction under way; the new head."""
    new = link(head, payload)
    connection.execute("INSERT INTO entries (payload, digest) VALUES (?, ?)", (payload, new))
    return new


def open_to_write(path: Path, *, wait: float, alone: bool) -> sqlite3.Connection:
    """A connection to the file, made if absent; ``alone`` keeps everyone else out until it closes.

    Guarantees: once a transaction commits it is on disk (synchronous = FULL); only the file's owner
    can read it, and what SQLite puts beside it.
    """
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE))
        sync_folder(path.parent)
    try:
        connection = sqlite3.connect(path, timeout=wait, isolation_level=None)
        try:
            connection.execute(f"PRAGMA locking_mode = {'EXCLUSIVE' if alone else 'NORMAL'}")
            if tables := _tables(connection) - {"entries", "sqlite_sequence"}:
                raise sqlite3.DatabaseError(f"it holds the table {min(tables)}")
            connection.executescript(_SCHEMA)
            if alone and (verdict := _integrity(connection)) != "ok":
                raise sqlite3.DatabaseError(verdict)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # damage reaches SQLite's own messages
        _raise_if_the_disk_failed(error, path)
        if is_busy(error):
            raise InputError(
                f"{path} is in use by another process; two writers could both spend the last "
                "of the budget: wait for it to end, or stop it"
            ) from error
        raise InputError(
            f"{path} cannot be used as a ledger ({error}); what was spent cannot be known from "
            "it: restore the file from a backup or start a new run"
        ) from error
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """From the first look to the commit nobody else writes; any error leaves no trace."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        _raise_if_the_disk_failed(error, path)
        raise InputError(
            f"{path} cannot be written ({error}), so nothing was released; check free space "
            "and permissions, then go on with: dpfedls resume"
        ) from error
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # a failing disk rolls back when it is opened again
                connection.execute("ROLLBACK")


def read_rows(path: Path) -> tuple[str, list[Row]]:
    """SQLite's verdict on the file ("ok") and all entries; no byte is written beside the file."""
    # A clean close merges the write-ahead log and removes it. One that is there belongs to a run
    # that is going on, or to one that crashed and may have paid for more than the file shows.
    log = path.with_name(path.name + "-wal")
    if not log.exists():
        return _read(f"{path.resolve().as_uri()}?immutable=1")
    _refuse_if_in_use(path)
    with tempfile.TemporaryDirectory(prefix="dpfedls-") as place:
        copy = Path(place) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(log.name))
        return _read(copy.as_uri())


def is_busy(error: Exception) -> bool:
    """Whether somebody else holds the file."""
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _read(uri: str) -> tuple[str, list[Row]]:
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return _integrity(connection), rows_after(connection)


def _tables(connection: sqlite3.Connection) -> set[str]:
    """What a file holds before anything is written to it: it may be somebody else's database."""
    return {n for (n,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _integrity(connection: sqlite3.Connection) -> str:
    return " ".join(connection.execute("PRAGMA integrity_check").fetchone()[0].split())


def _raise_if_the_disk_failed(error: Exception, path: Path | str) -> None:
    """A full or failing disk is no damage: say it as every other write does."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says where in SQLite
    if code == sqlite3.SQLITE_CANTOPEN and os.path.isfile(path) and os.access(path, os.W_OK):
        code = sqlite3.SQLITE_IOERR  # not this file, but one that SQLite makes beside it
    if code in _DISK:
        raise OSError(_DISK[code], os.strerror(_DISK[code]), str(path)) from error


def _refuse_if_in_use(path: Path) -> None:
    """Raise SQLITE_BUSY while a process holds the file.

    Only SQLite may ask: a process that opens and closes the file by itself loses its own locks on
    it (POSIX). ``readonly_shm`` keeps SQLite from making a shared-memory file beside the evidence;
    that it then cannot read a crashed run's log does not matter here.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro&readonly_shm=1"
    with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            if is_busy(error):
                raise


def link(head: str, payload: bytes) -> str:
    """The digest of a payload and all before it."""
    return hashlib.sha256(head.encode() + b"\n" + payload).hexdigest()


_DISK = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}

# FULL waits for the disk at each commit.
_SCHEMA = """
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
