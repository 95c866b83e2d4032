from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from dpfedls import InputError
from dpfedls.experiments import recipe as recipes
from dpfedls.experiments import run as runs
from dpfedls.experiments.checkpoint import FILE
from dpfedls.experiments.verify import verify


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    settings = ["plan.num_clients=60", "plan.rounds=5", "plan.noise_multiplier=1.0"]
    runs.start(recipes.read("synthetic", settings), folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["ledger.sqlite", str(FILE)])
def test_any_flipped_byte_or_cut_is_noticed(name, copy):
    """2,000 random alterations of each file, every one of them noticed."""
    path, rng = copy / name, np.random.default_rng(7)
    good = path.read_bytes()
    for k in range(2000):
        where = int(rng.integers(len(good)))
        bad = bytearray(good)
        if k % 10 == 0:
            del bad[where:]
        else:
            bad[where] ^= int(rng.integers(1, 256))
        path.write_bytes(bad)
        assert not verify(copy)["valid"], f"alteration {k} at byte {where}"
    path.write_bytes(good)
    assert verify(copy)["valid"]


def rewrite(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f: rewrite(f / "privacy.json", lambda v: v.update(epsilon=0.1)), "claims ε = 0.1"),
        (
            lambda f: rewrite(f / "privacy.json", lambda v: v.update(ledger_head="0")),
            "not made from this ledger",
        ),
        (lambda f: (f / "privacy.json").unlink(), "no readable privacy.json"),
        (lambda f: (f / "ledger.sqlite").unlink(), "ledger.sqlite is missing"),
        (lambda f: (f / FILE).unlink(), "is missing although rounds were paid"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "rounds.jsonl").write_text("{"), "cannot be read"),
        (lambda f: (f / "rounds.jsonl").write_text('{"round": 2}\n'), "one after another"),
        (
            lambda f: (f / "rounds.jsonl").write_text(
                "".join(f'{{"round": {t}}}\n' for t in range(1, 9))
            ),
            "lists 8 rounds, but 5 were paid",
        ),
        (
            lambda f: (f / "recipe.toml").write_text(
                (f / "recipe.toml").read_text().replace("rounds = 5", "rounds = 50")
            ),
            "promises another plan",
        ),
    ],
)
def test_each_problem_is_named(copy, change, problem):
    change(copy)
    found = verify(copy)
    assert not found["valid"]
    assert any(problem in line for line in found["problems"]), found["problems"]


def test_a_round_released_but_not_paid_for_is_named(finished, tmp_path):
    """A ledger from an earlier moment beside a later checkpoint: a resumed round not paid for."""
    folder, ledgers = tmp_path / "r", []
    settings = ["plan.num_clients=60", "plan.rounds=5", "plan.noise_multiplier=1.0"]

    class Stop(Exception):
        pass

    def stop(log):
        raise Stop

    with pytest.raises(Stop):
        runs.start(recipes.read("synthetic", settings), folder, stop)
    ledgers.append((folder / "ledger.sqlite").read_bytes())
    runs.resume(folder)
    (folder / "ledger.sqlite").write_bytes(ledgers[0])
    found = verify(folder)
    assert any("holds round 2, which was never paid for" in p for p in found["problems"])


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        verify(tmp_path)
    (tmp_path / "recipe.toml").write_text("plan = 3")
    with pytest.raises(InputError, match="does not hold a readable plan"):
        verify(tmp_path)
