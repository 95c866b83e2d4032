"""What a round released is on disk before the next one is paid for."""

from __future__ import annotations

import errno
import threading

import pytest

from dpfedls import PoissonSampling, PrivacyPlan
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.runs.writing_behind import Writer, WrittenFirst

PLAN = PrivacyPlan(
    sampler=PoissonSampling(rate=0.1), num_clients=100, rounds=3, clip_norm=1, noise_multiplier=1
)


def account() -> tuple[MemoryLedger, Writer, WrittenFirst]:
    ledger, writer = MemoryLedger(PLAN), Writer()
    return ledger, writer, WrittenFirst(ledger, writer)


def test_a_payment_waits_until_the_last_release_is_written():
    ledger, writer, first = account()
    never, paid_when_written = threading.Event(), []

    def write() -> None:
        never.wait(0.1)  # long enough for a payment that does not wait
        paid_when_written.append(len(ledger.entries))

    writer.begin(write)
    first.spend(PLAN.round_event, 1, "nonce")
    assert paid_when_written == [0]
    assert len(ledger.entries) == 1


def test_releases_are_written_in_order():
    _, writer, _ = account()
    never, written = threading.Event(), []
    for t, pause in enumerate((0.1, 0.0)):
        writer.begin(lambda t=t, pause=pause: (never.wait(pause), written.append(t))[1])
    writer.finish()
    assert written == [0, 1]


def test_nothing_is_paid_where_the_last_release_cannot_be_written():
    ledger, writer, first = account()

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "rounds.jsonl")

    writer.begin(full)
    with pytest.raises(OSError, match="No space left"):
        first.spend(PLAN.round_event, 1, "nonce")
    assert not ledger.entries
    writer.finish()  # it was told once
