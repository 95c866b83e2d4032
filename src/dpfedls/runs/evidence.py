"""Before a run goes on: nothing in its folder may show more than its ledger has paid for.

A ledger that was removed, emptied or put back to an earlier day would let the same privacy be
spent twice. Whatever was written after a payment is evidence of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.privacy.bounded import LOG, file_digest, require_size
from dpfedls.privacy.ledger import Ledger, SqliteLedger
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.log import altered_line, log_heads
from dpfedls.runs.record import RoundRecord
from dpfedls.runs.seal import SEALED, STATEMENT, sealed_files
from dpfedls.runs.verify import read_statement

_AT_THE_END = ("model.safetensors", "report.html", STATEMENT)  # written once no round is left
_RESTORE = "restore the ledger that belongs to it, with its -wal file, from a backup"


def require_ledger(folder: Path) -> None:
    """Refuse a folder with anything of a run in it but no ledger, or an empty file in its place."""
    ledger = folder / "ledger.sqlite"
    require_size(ledger, LOG)
    names = [name for name in (STATEMENT, *SEALED) if name not in ("recipe.toml", ledger.name)]
    shown = [name for name in names if (folder / name).is_file()]
    if shown and not (ledger.is_file() and ledger.stat().st_size):
        raise InputError(
            f"{ledger} is missing or empty although the run has begun ({shown[0]} is there); what "
            "was spent cannot be known without it: restore it from a backup, or start a new run in "
            "another folder"
        )


def require_paid(
    folder: Path,
    ledger: SqliteLedger,
    account: Ledger,
    found: Checkpoint | None,
    rounds: Sequence[RoundRecord],
    mode: str,
) -> list[str]:
    """Refuse whatever shows a round that was not paid for; the heads of the log."""
    paid = {entry.round for entry in ledger.entries}
    known = found is None or found.ledger_head in ledger.heads
    if found is not None and not (known and paid >= set(range(found.round))):
        raise InputError(
            f"{folder}: the checkpoint holds {found.round} rounds that this ledger does not know; "
            f"going on would release what was never paid for: {_RESTORE}"
        )
    if [line.round for line in rounds] != list(range(1, len(rounds) + 1)):
        raise InputError(
            f"{folder}/rounds.jsonl does not list the rounds one after another; the record of what "
            "was released would have gaps: restore it from a backup"
        )
    if not paid >= set(range(len(rounds))):
        raise InputError(
            f"{folder}/rounds.jsonl lists {len(rounds)} rounds, but this ledger paid for "
            f"{len(paid)}; going on would spend the same privacy twice: {_RESTORE}"
        )
    heads = log_heads(map(msgspec.json.encode, rounds))
    line = altered_line(heads, ledger.payments) or _altered_since(found, heads)
    if line is not None:
        raise InputError(
            f"{folder}/rounds.jsonl is not the log that the ledger and the checkpoint know: a line "
            f"up to {line} was altered or removed, and a report would show it: restore the file "
            "from a backup"
        )
    ended = found is not None and found.diverged  # whatever rounds are left
    _require_finished(folder, ledger, account, paid, ended)
    if mode == "deployed":  # else the same noise again is the same release, and no harm
        _require_newest(folder, ledger, 0 if found is None else found.round)
    return heads


def is_sealed(folder: Path) -> bool:
    """Whether a run has ended here and each file is as it was sealed: then nothing is written."""
    files = sealed_files(_stated(folder))
    there = [folder / name for name in SEALED if (folder / name).is_file()]
    found = dict(_digest(folder, path) for path in there)
    return bool(files) and found == {n: digest for n, digest in files.items() if n != STATEMENT}


def _digest(folder: Path, path: Path) -> tuple[str, str]:
    return str(path.relative_to(folder)), file_digest(path)


def _require_newest(folder: Path, ledger: SqliteLedger, held: int) -> None:
    """Refuse a checkpoint of an earlier day: its later rounds would be released a second time.

    A round is paid for once the checkpoint before it is on disk, so after any crash the checkpoint
    holds all rounds but the last one paid for; and a sealed run has the checkpoint of its seal.
    """
    path, last = folder / FILE, max((payment.round for payment in ledger.payments), default=0)
    backup = "restore the newest one from a backup, or start a new run in another folder"
    if held < last:
        raise InputError(
            f"{path} holds {held} rounds, but it held {last} when round {last + 1} was paid for; "
            f"going on from it would release, and pay for, rounds a second time: {backup}"
        )
    sealed = sealed_files(_stated(folder))
    if str(FILE) in sealed and not (path.is_file() and file_digest(path) == sealed[str(FILE)]):
        raise InputError(
            f"{path} is not the checkpoint that {STATEMENT} was made from; the run has ended, and "
            f"another model would be sealed: {backup}"
        )


def _altered_since(found: Checkpoint | None, heads: list[str]) -> int | None:
    if found is None or not found.log_head:
        return None
    return None if heads[found.lines : found.lines + 1] == [found.log_head] else found.lines


def _require_finished(
    folder: Path, ledger: SqliteLedger, account: Ledger, paid: set[int], ended: bool
) -> None:
    """What is written at the end of a run must not stand beside a ledger that has rounds left."""
    there = [name for name in _AT_THE_END if (folder / name).is_file()]
    if not there:
        return
    if not ended and not paid >= set(range(ledger.plan.rounds)):
        try:
            account.check(ledger.plan.round_event)
        except BudgetExhausted:
            pass
        else:
            raise InputError(
                f"{folder / there[0]} was written at the end of a run, but this ledger has rounds "
                f"left to pay for; going on would spend the same privacy twice: {_RESTORE}"
            )
    if _stated(folder).get("ledger_head", ledger.head) not in ledger.heads:
        raise InputError(
            f"{folder / STATEMENT} was made from another ledger; going on would spend the same "
            f"privacy twice: {_RESTORE}"
        )


def _stated(folder: Path) -> dict[str, Any]:
    """Nothing where the statement cannot be read: it is written again from what can be trusted."""
    try:
        return read_statement(folder)
    except InputError:
        return {}
