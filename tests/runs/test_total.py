from __future__ import annotations

import shutil

import pytest

from dpfedls import FixedSizeSampling, InputError
from dpfedls.privacy.accountants import epsilon
from dpfedls.privacy.ledger import SqliteLedger
from dpfedls.runs.total import total
from federations import plan


def paid(folder, *rounds, nonce="simulation seed 0 round {}", **changes):
    """A folder with a ledger in which these rounds are paid for."""
    folder.mkdir(exist_ok=True)
    promised = plan(**changes)
    with SqliteLedger(folder / "ledger.sqlite", promised) as ledger:
        for t in rounds:
            ledger.spend(promised.round_event, t, nonce.format(t))
    return folder


def test_unlike_runs_are_one_composition(tmp_path):
    """Less than the sum of their ε, more than the larger; the same seed is not the same run."""
    a = paid(tmp_path / "a", 0, 1, delta=1e-3)
    b = paid(tmp_path / "b", 0, 1, 2, noise_multiplier=2.0)
    found = total([a, b])
    rounds = [(plan().round_event, 2), (plan(noise_multiplier=2.0).round_event, 3)]
    assert found["epsilon"] == pytest.approx(epsilon(rounds, 1e-2), rel=1e-9)
    assert (found["delta"], found["relation"]) == (1e-2, "add-or-remove-one")
    own = [run["epsilon"] for run in found["runs"]]
    assert own[0] == pytest.approx(plan(delta=1e-3).epsilon(rounds=2), rel=1e-9)
    assert max(own[1], plan().epsilon(rounds=2)) < found["epsilon"] < sum(own)
    assert [run["rounds"] for run in found["runs"]] == [2, 3]


def test_equal_runs_cost_what_one_long_run_does(tmp_path):
    folders = [paid(tmp_path / name, 0, 1) for name in "ab"]
    assert total(folders)["epsilon"] == pytest.approx(plan().epsilon(rounds=4), rel=1e-9)
    assert total(folders, 1e-4)["epsilon"] > total(folders)["epsilon"]
    assert total(folders[:1])["epsilon"] == pytest.approx(plan().epsilon(rounds=2), rel=1e-9)


def test_a_copy_is_the_same_release_until_it_goes_on_by_itself(tmp_path):
    a = paid(tmp_path / "a", 0)
    shutil.copytree(a, tmp_path / "copy")
    found = total([a, tmp_path / "copy"])
    assert found["epsilon"] == pytest.approx(plan().epsilon(rounds=1))
    assert found["assumed"][0].startswith("folders that share payments (1 here)")
    assert not any("share" in line for line in total([a])["assumed"])
    paid(tmp_path / "copy", 1, nonce="fresh here")
    paid(a, 1, nonce="fresh there")
    assert total([a, tmp_path / "copy"])["epsilon"] == pytest.approx(plan().epsilon(rounds=3))


def test_a_run_without_noise_has_no_finite_total(tmp_path):
    folders = [paid(tmp_path / "a", 0), paid(tmp_path / "b", 0, noise_multiplier=0)]
    assert total(folders)["epsilon"] == float("inf")


def test_whose_runs_they_are_is_said(tmp_path):
    a, b = paid(tmp_path / "a", 0), paid(tmp_path / "b", 0, num_clients=30)
    assert "count 20 and 30 clients" in total([a, b])["assumed"][0]
    assert "count" not in total([a])["assumed"][0]


def test_what_cannot_be_added_is_refused_in_one_line(tmp_path):
    a = paid(tmp_path / "a", 0)
    fixed = paid(tmp_path / "fixed", 0, sampler=FixedSizeSampling(cohort=5))
    (tmp_path / "none").mkdir()
    broken = paid(tmp_path / "broken", 0)
    (broken / "ledger.sqlite").write_bytes(b"not a ledger" * 99)
    for folders, why in (
        ([a, fixed], "different promises"),
        ([a, tmp_path / "none"], "has no ledger"),
        ([a, broken], "cannot be read as a ledger"),
        ([], "no run folder"),
    ):
        with pytest.raises(InputError, match=why) as caught:
            total(folders)
        assert "\n" not in str(caught.value)
