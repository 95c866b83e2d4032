from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys

import msgspec
import pytest

from dpfedls import BudgetExhausted, InputError
from dpfedls.privacy.account import Entry, read_ledger
from dpfedls.privacy.ledger import MemoryLedger, SqliteLedger
from federations import plan


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def pay(ledger, *rounds, nonce="n{}"):
    for t in rounds:
        ledger.spend(plan().round_event, t, nonce.format(t))


def test_what_was_spent_survives_the_process(path):
    with SqliteLedger(path, plan()) as ledger:
        pay(ledger, 0, 1)
        spent = ledger.epsilon()
    with SqliteLedger(path, plan()) as again:
        assert len(again.entries) == 2
        assert again.epsilon() == spent == pytest.approx(plan().epsilon(rounds=2), rel=1e-12)


def crash_after_paying(path, *nonces):
    """Another process pays and ends abruptly: nothing is closed, merged or cleared away."""
    code = """
import os, pathlib, sys
import msgspec
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.ledger import SqliteLedger
plan = msgspec.json.decode(sys.argv[2], type=PrivacyPlan)
ledger = SqliteLedger(pathlib.Path(sys.argv[1]), plan)
for t, nonce in enumerate(sys.argv[3:]):
    ledger.spend(plan.round_event, t, nonce)
os._exit(9)
"""
    promise = msgspec.json.encode(plan()).decode()
    done = subprocess.run([sys.executable, "-c", code, str(path), promise, *nonces])
    assert done.returncode == 9


def test_a_payment_is_on_disk_before_spend_returns(path):
    crash_after_paying(path, "x")
    with SqliteLedger(path, plan()) as ledger:
        assert [entry.nonce for entry in ledger.entries] == ["x"]


def contents(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_reading_writes_nothing_and_sees_what_a_crash_left_unmerged(path, tmp_path):
    crash_after_paying(path, "x", "y")
    before = contents(tmp_path)
    assert set(before) == {"ledger.sqlite", "ledger.sqlite-wal"}
    # The file alone knows nothing: the payments are in the log.
    alone = tmp_path.parent / f"{tmp_path.name}-alone.sqlite"
    shutil.copy(path, alone)
    assert read_ledger(alone).problems
    assert [entry.nonce for entry in read_ledger(path).entries] == ["x", "y"]
    assert contents(tmp_path) == before
    SqliteLedger(path, plan()).close()
    before = contents(tmp_path)
    assert set(before) == {"ledger.sqlite"}
    assert len(read_ledger(path).entries) == 2
    assert contents(tmp_path) == before


def test_reading_in_its_own_process_does_not_lose_the_writers_lock(path):
    """POSIX drops all of a process's locks on a file when it closes any handle to it."""
    with SqliteLedger(path, plan()):
        assert "is in use" in read_ledger(path).problems[0]
        code = """
import pathlib, sys
from dpfedls.privacy.account import read_ledger
print(read_ledger(pathlib.Path(sys.argv[1])).problems[0])
"""
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True
        )
        assert "is in use" in done.stdout, done.stderr


def test_a_full_disk_is_said_in_words_and_nothing_counts_as_paid(path):
    with SqliteLedger(path, plan()) as ledger:
        pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
        ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
        pay(ledger, 0)
        with pytest.raises(OSError, match="No space left") as error:
            pay(ledger, 1, nonce="longer than a page" * 999)
        assert error.value.filename == str(path)
        paid = list(ledger.entries)
    assert read_ledger(path).entries == paid == [Entry(0, plan().round_event, "n0")]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_same_noise_is_paid_once_and_fresh_noise_again(kind, path):
    ledger = MemoryLedger(plan()) if kind == "memory" else SqliteLedger(path, plan())
    pay(ledger, 0, 0)
    assert len(ledger.entries) == 1
    pay(ledger, 0, nonce="other")
    assert len(ledger.entries) == 2


def test_budget_in_epsilon_stops_before_it_is_exceeded(path):
    two = plan().epsilon(rounds=2)
    for budget, affordable in ((two, 2), (two * 0.999, 1), (1e-9, 0)):
        ledger = MemoryLedger(plan(), budget)
        pay(ledger, *range(affordable))
        with pytest.raises(BudgetExhausted):
            pay(ledger, affordable)
        assert len(ledger.entries) == affordable
        assert ledger.epsilon() <= budget


def test_a_refused_payment_leaves_no_trace(path):
    with SqliteLedger(path, plan(rounds=1)) as ledger:
        ledger.spend(plan().round_event, 0, "a")
        head = ledger.head
        with pytest.raises(BudgetExhausted):
            ledger.spend(plan().round_event, 1, "b")
        with pytest.raises(InputError, match="the ledger was opened for"):
            ledger.spend(plan(noise_multiplier=0.5).round_event, 1, "c")
        assert ledger.head == head
    assert len(read_ledger(path).entries) == 1


def test_a_second_process_is_refused(path):
    with SqliteLedger(path, plan()), pytest.raises(InputError, match="in use by another process"):
        SqliteLedger(path, plan())
    SqliteLedger(path, plan()).close()


def test_a_promise_is_not_edited(path):
    SqliteLedger(path, plan(), 3.0).close()
    with pytest.raises(InputError, match="another plan, budget or recipe"):
        SqliteLedger(path, plan(), 3.0, recipe="other")
    for other, budget in ((plan(rounds=9), 3.0), (plan(), 30.0), (plan(), None)):
        with pytest.raises(InputError, match="opened for another plan, budget or recipe"):
            SqliteLedger(path, other, budget)


def test_rows_cannot_be_changed_or_removed(path):
    with SqliteLedger(path, plan()) as ledger:
        pay(ledger, 0)
        for statement in ("DELETE FROM entries", "UPDATE entries SET payload = x'00'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                ledger._connection.execute(statement)


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE entries SET payload = replace(payload, 'n1', 'n7') WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 1",
        "UPDATE entries SET digest = CAST(x'ffe4' AS TEXT) WHERE seq = 2",  # no text at all
        "UPDATE entries SET payload = CAST(x'ffe4' AS TEXT) WHERE seq = 2",
    ],
)
def test_tampering_behind_the_triggers_breaks_the_chain(path, tampering):
    with SqliteLedger(path, plan()) as ledger:
        pay(ledger, 0, 1, 2)
    connection = sqlite3.connect(path)
    connection.executescript("DROP TRIGGER no_update; DROP TRIGGER no_delete;")
    connection.execute(tampering)
    connection.commit()
    connection.close()
    assert "breaks the hash chain" in read_ledger(path).problems[0]
    with pytest.raises(InputError, match="breaks the hash chain"):
        SqliteLedger(path, plan())


def test_a_file_that_is_no_ledger_is_said_to_be_none(path):
    path.write_bytes(b"not a database at all, but long enough to look at" * 99)
    assert "cannot be read as a ledger" in read_ledger(path).problems[0]
    with pytest.raises(InputError):
        SqliteLedger(path, plan())
    empty = path.with_name("empty.sqlite")
    connection = sqlite3.connect(empty)
    connection.execute("CREATE TABLE entries (seq, payload, digest)")
    connection.commit()
    connection.close()
    assert "no opening entry" in read_ledger(empty).problems[0]


def test_without_noise_epsilon_is_infinite_and_no_budget_covers_it():
    open_ = plan(noise_multiplier=0)
    ledger = MemoryLedger(open_)
    ledger.spend(open_.round_event, 0, "a")
    assert ledger.epsilon() == float("inf")
    with pytest.raises(BudgetExhausted):
        MemoryLedger(open_, budget=1.0).spend(open_.round_event, 0, "a")


def test_rounds_run_again_after_crashes_all_count():
    ledger = MemoryLedger(plan(rounds=2), budget=100.0)
    pay(ledger, 0, 1, 0, 1, nonce="first {}")
    pay(ledger, 0, 1, nonce="again {}")
    assert ledger.epsilon() == pytest.approx(plan(rounds=4).epsilon(), rel=1e-9)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b", "ü"])
def test_odd_names_of_folders_are_names(tmp_path, name):
    (tmp_path / name).mkdir()
    with SqliteLedger(tmp_path / name / "ledger.sqlite", plan()) as ledger:
        pay(ledger, 0)
    assert len(read_ledger(tmp_path / name / "ledger.sqlite").entries) == 1


def test_two_ledgers_of_one_plan_are_told_apart(tmp_path):
    heads = set()
    for name in ("a", "b"):
        with SqliteLedger(tmp_path / f"{name}.sqlite", plan()) as ledger:
            heads.add(ledger.head)
    assert len(heads) == 2


def test_a_ledger_in_use_is_said_to_be(path):
    with SqliteLedger(path, plan()):
        assert "is in use" in read_ledger(path).problems[0]
