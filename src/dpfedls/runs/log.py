"""rounds.jsonl as a chain of digests, which the ledger's payments and the checkpoint hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate

from dpfedls.privacy.account import Payment
from dpfedls.privacy.hash_chain import link


def log_heads(lines: Iterable[bytes]) -> list[str]:
    """The digest after each line of the log, "" before the first."""
    return list(accumulate(lines, next_head, initial=""))


def next_head(head: str, line: bytes) -> str:
    """The digest of a line and all before it.

    How long a round took is left out: a round that is run again after a crash takes another time.
    """
    values = json.loads(line)
    values.pop("seconds", None)
    return link(head, json.dumps(values, sort_keys=True).encode())


def altered_line(heads: Sequence[str], payments: Iterable[Payment]) -> int | None:
    """The first line, counted from 1, up to which the log is not the one that payments saw.

    A payment carries the head of the log when it was made; "" says nothing. A round that is paid
    for again takes the place of all that came after it.
    """
    seen: list[str] = []
    for payment in payments:
        del seen[payment.round :]
        seen += [""] * (payment.round - len(seen)) + [payment.log]
    pairs = zip(seen, heads, strict=False)  # the log may end earlier: rounds lost in a crash
    return next((t for t, (saw, is_) in enumerate(pairs) if saw and saw != is_), None)
