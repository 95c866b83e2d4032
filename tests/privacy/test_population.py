from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import msgspec
import pytest

from dpfedls import BudgetExhausted, FixedSizeSampling, InputError
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.accountants import epsilon
from dpfedls.privacy.ledger import SqliteLedger
from dpfedls.privacy.population import JointLedger, Population, account_path
from federations import plan

DELTA = 1e-2


@pytest.fixture
def path(tmp_path):
    return tmp_path / "populations" / "people.sqlite"


def own(tmp_path, name, **changes):
    return SqliteLedger(tmp_path / f"{name}.sqlite", plan(**changes))


def entries(path):
    return read_ledger(path).entries


def test_two_runs_share_one_budget(path, tmp_path):
    """Unlike rounds, one composition: the last payment that fits is the last that is made."""
    one, other = plan(rounds=9).round_event, plan(rounds=9, noise_multiplier=2.0).round_event
    budget = epsilon([(one, 2), (other, 3)], DELTA)
    with own(tmp_path, "a", rounds=9) as a, own(tmp_path, "b", rounds=9, noise_multiplier=2.0) as b:
        first = JointLedger(a, Population(path, budget, DELTA))
        second = JointLedger(b, Population(path))  # as another process would open it
        for t in range(2):
            first.spend(one, t, f"n{t}")
        for t in range(3):
            second.spend(other, t, f"n{t}")
        before = read_ledger(path)
        for joint, event, t in ((first, one, 2), (second, other, 3)):
            with pytest.raises(BudgetExhausted, match=r"budget of the population .*5 rounds"):
                joint.check(event)
            with pytest.raises(BudgetExhausted, match="budget of the population"):
                joint.spend(event, t, f"n{t}")
        assert (len(a.entries), len(b.entries)) == (2, 3)
        assert read_ledger(path) == before
        assert Population(path).epsilon() == pytest.approx(budget, rel=1e-9)
        assert first.epsilon() == a.epsilon() < budget


def test_looking_ahead_spends_neither_more_nor_less(path):
    """Around the jumps of 64 and 8 rounds: exactly as many as ε allows, one by one."""
    event = plan(noise_multiplier=4.0).round_event
    for affordable in (1, 7, 9, 63, 66):
        budget = epsilon([(event, affordable)], DELTA)
        people = Population(path.with_name(f"{affordable}.sqlite"), budget, DELTA)
        for t in range(affordable):
            people.spend(event, t, f"n{t}")
        with pytest.raises(BudgetExhausted):
            people.spend(event, affordable, "one more")
        assert len(entries(people.path)) == affordable


def test_the_same_seed_in_two_runs_is_two_payments_and_the_same_run_again_is_none(path, tmp_path):
    people, event = Population(path, 50.0, DELTA), plan().round_event
    for name in ("a", "b"):
        with own(tmp_path, name) as ledger:
            JointLedger(ledger, people).spend(event, 0, "simulation seed 0 round 0")
    assert len(entries(path)) == 2
    with own(tmp_path, "a") as again:
        JointLedger(again, Population(path)).spend(event, 0, "simulation seed 0 round 0")
    assert len(entries(path)) == 2


def test_a_refusal_by_the_runs_own_ledger_costs_the_population_nothing(path, tmp_path):
    people, event = Population(path, 50.0, DELTA), plan().round_event
    with own(tmp_path, "a", rounds=1) as ledger:
        joint = JointLedger(ledger, people)
        joint.spend(event, 0, "n0")
        with pytest.raises(BudgetExhausted):
            joint.spend(event, 1, "n1")
    assert len(entries(path)) == 1


@pytest.mark.parametrize(("again", "paid"), [("same noise", 1), ("fresh noise", 2)])
def test_a_crash_between_the_two_payments_never_loses_one(path, tmp_path, again, paid):
    """Another process dies after the population is paid and before its own ledger is.

    Nothing was released, so the same noise is the same payment; fresh noise is a new release.
    """
    code = """
import os, pathlib, sys
import msgspec
from dpfedls.privacy.ledger import SqliteLedger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.population import JointLedger, Population
plan = msgspec.json.decode(sys.argv[1], type=PrivacyPlan)
own = SqliteLedger(pathlib.Path(sys.argv[2]), plan)
own.spend = lambda *_: os._exit(9)
JointLedger(own, Population(pathlib.Path(sys.argv[3]), 50.0, 1e-2)).spend(
    plan.round_event, 0, "same noise")
"""
    promise, mine = msgspec.json.encode(plan()).decode(), tmp_path / "a.sqlite"
    done = subprocess.run([sys.executable, "-c", code, promise, str(mine), str(path)])
    assert done.returncode == 9
    assert (len(entries(mine)), len(entries(path))) == (0, 1)
    with own(tmp_path, "a") as ledger:
        JointLedger(ledger, Population(path)).spend(plan().round_event, 0, again)
    assert (len(entries(mine)), len(entries(path))) == (1, paid)


def test_processes_that_pay_at_once_never_spend_more_than_there_is(path):
    """Three processes want 12 rounds each, and there is budget for 20 in all."""
    event = plan().round_event
    Population(path, epsilon([(event, 20)], DELTA), DELTA)
    code = """
import pathlib, sys
import msgspec
from dpfedls.errors import BudgetExhausted
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.population import Population
event = msgspec.json.decode(sys.argv[1], type=RoundEvent)
people = Population(pathlib.Path(sys.argv[2]))
try:
    for t in range(12):
        people.spend(event, t, f"{sys.argv[3]} {t}")
except BudgetExhausted:
    sys.exit(3)
"""
    arguments = [sys.executable, "-c", code, msgspec.json.encode(event).decode(), str(path)]
    running = [subprocess.Popen([*arguments, name]) for name in "abc"]
    codes = sorted(process.wait() for process in running)
    assert codes in ([0, 3, 3], [3, 3, 3])
    assert len(entries(path)) == 20


def test_a_promise_is_not_edited_and_not_forgotten(path):
    with pytest.raises(InputError, match=r"missing or empty.*give budget where"):
        Population(path)
    assert not path.parent.exists()
    with pytest.raises(InputError, match="epsilon must be"):
        Population(path, -1.0, DELTA)
    Population(path, 2.0, DELTA)
    for budget, delta in ((3.0, None), (None, 1e-3), (2.0, 1e-3)):
        with pytest.raises(InputError, match="what was promised cannot be changed"):
            Population(path, budget, delta)
    assert (Population(path).budget, Population(path, 2.0, DELTA).delta) == (2.0, DELTA)


def test_two_relations_have_no_common_account(path):
    people = Population(path, 50.0, DELTA)
    people.spend(plan().round_event, 0, "a")
    fixed = plan(sampler=FixedSizeSampling(cohort=5)).round_event
    with pytest.raises(InputError, match="different promises"):
        people.spend(fixed, 0, "b")
    assert len(entries(path)) == 1


def test_tampering_is_noticed_when_opened_and_while_open(path):
    people = Population(path, 50.0, DELTA)
    people.spend(plan().round_event, 0, "a")
    watching = Population(path)
    people.spend(plan().round_event, 1, "b")
    connection = sqlite3.connect(path)
    connection.executescript(
        "DROP TRIGGER no_update; UPDATE entries SET digest = 'x' WHERE seq = 3;"
    )
    connection.close()
    with pytest.raises(InputError, match="breaks the hash chain"):
        Population(path)
    with pytest.raises(InputError, match="breaks the hash chain"):
        watching.epsilon()


def test_a_runs_ledger_is_not_taken_for_a_population(tmp_path):
    own(tmp_path, "a").close()
    with pytest.raises(InputError, match="what was promised cannot be changed"):
        Population(tmp_path / "a.sqlite")


@pytest.mark.parametrize("name", ["", "p", "../x.sqlite", "a/b.sqlite", "/tmp/p", "/tmp/.sqlite"])
def test_one_name_is_one_account(name):
    """What depends on where one stands, or on the run's folder, would be several."""
    with pytest.raises(InputError, match=r"not the full path .* give one such as .*\.sqlite"):
        account_path(name)


def test_a_new_account_is_said_and_an_empty_file_is_none(path, caplog):
    """A crash may leave a file without an entry, or without a byte."""
    path.parent.mkdir()
    path.touch()
    with pytest.raises(InputError, match="missing or empty"):
        Population(path)
    with pytest.raises(InputError, match="missing or empty"):  # now it has a table
        Population(path)
    Population(path, 2.0, DELTA)
    Population(path)
    said = f"{path} is a new account: its population may spend ε = 2 at δ = 0.01 in all"
    assert caplog.messages == [said]


def test_the_folders_of_an_account_are_on_disk(path, monkeypatch):
    """A power cut takes a folder away whose name was not synced where it stands."""
    synced = set()
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (synced.add(os.readlink(f"/proc/self/fd/{handle}")), real(handle)),
    )
    Population(path.parent / "deep" / "people.sqlite", 2.0, DELTA)
    home = path.parent.parent
    assert {str(home), str(home / "populations"), str(home / "populations" / "deep")} <= synced


def test_somebody_elses_database_is_not_written_to(tmp_path):
    path = tmp_path / "places.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE bookmarks (url TEXT); INSERT INTO bookmarks VALUES (1);")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"cannot be used as a ledger .*the table bookmarks"):
        Population(path, 2.0, DELTA)
    assert path.read_bytes() == before
