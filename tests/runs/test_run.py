from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedls import InputError
from dpfedls.runs import folder as folders
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.compare import compare
from dpfedls.runs.verify import verify

SMALL = ["plan.num_clients=60", "plan.rounds=6", "plan.noise_multiplier=1.0"]


def small(*settings):
    return recipes.read("synthetic", [*SMALL, *settings])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    runs.start(small(), folder)
    return folder


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_the_folder_holds_what_is_promised(finished):
    for name in (
        "recipe.toml",
        "rounds.jsonl",
        "privacy.json",
        "ledger.sqlite",
        "model.safetensors",
        "report.html",
        str(FILE),
    ):
        assert (finished / name).is_file(), name
    facts = json.loads((finished / "privacy.json").read_text())
    assert facts["mode"] == "simulation"
    assert facts["mechanism"]["rounds_paid"] == 6
    assert len(folders.read_rounds(finished)) == 6
    assert verify(finished)["valid"], verify(finished)["problems"]


def test_stopping_after_any_round_and_resuming_gives_the_same_weights(finished, tmp_path):
    class Stop(Exception):
        pass

    for last in (1, 3, 5):
        folder = tmp_path / str(last)

        def stop(log, last=last):
            if log.round == last:
                raise Stop

        with pytest.raises(Stop):
            runs.start(small(), folder, [stop])
        outcome = runs.resume(folder)
        assert outcome.summary()["rounds"] == 6
        for name, tensor in weights(finished).items():
            assert np.array_equal(tensor, weights(folder)[name])
        assert verify(folder) == verify(finished)


def test_resuming_a_finished_run_changes_nothing(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    outcome = runs.resume(copy)
    assert outcome.summary()["rounds"] == 6
    assert np.array_equal(weights(copy)["weight"], weights(finished)["weight"])


def test_an_old_checkpoint_never_lowers_what_was_spent(finished, tmp_path):
    old = tmp_path / "old"
    with pytest.raises(ZeroDivisionError):
        runs.start(small(), old, [lambda log: 1 / (log.round - 2)])
    state = (old / FILE).read_bytes()
    runs.resume(old)
    spent = verify(old)["spent_epsilon"]
    (old / FILE).write_bytes(state)  # back to round 2
    runs.resume(old)
    after = verify(old)
    assert after["valid"], after["problems"]
    assert after["spent_epsilon"] == spent
    assert np.array_equal(weights(old)["weight"], weights(finished)["weight"])


def test_deployed_noise_pays_again_for_what_a_crash_lost(tmp_path, caplog):
    """A round that was paid for and not kept: fresh noise is a new release, the budget is spent."""
    folder, states = tmp_path / "deployed", []
    runs.start(
        small("mode=deployed"), folder, [lambda log: states.append((folder / FILE).read_bytes())]
    )
    for name in ("model.safetensors", "report.html", "privacy.json"):
        (folder / name).unlink()
    (folder / FILE).write_bytes(states[4])
    outcome = runs.resume(folder)
    assert outcome.exhausted is not None
    assert outcome.summary()["rounds"] == 5
    assert "rounds 6 were paid for and then lost" in caplog.text
    found = verify(folder)
    assert found["valid"], found["problems"]
    assert found["spent_epsilon"] == pytest.approx(small().plan.epsilon(), rel=1e-9)


def test_two_deployed_runs_of_one_seed_differ(tmp_path):
    for name in "ab":
        runs.start(small("mode=deployed", "plan.rounds=1"), tmp_path / name)
    assert not np.array_equal(weights(tmp_path / "a")["weight"], weights(tmp_path / "b")["weight"])


def test_killed_with_9_at_any_moment_and_resumed_is_the_same_run(finished, tmp_path):
    """A real process, killed three times at different moments."""
    folder = tmp_path / "killed"
    toml = tmp_path / "small.toml"
    toml.write_text(recipes.encode(small("plan.rounds=40")), encoding="utf-8")
    whole = tmp_path / "whole"
    runs.start(recipes.read(str(toml)), whole)
    command = [sys.executable, "-m", "dpfedls"]
    process = subprocess.Popen(
        [*command, "run", str(toml), "--out", str(folder)], stderr=subprocess.DEVNULL
    )
    for wanted in (3, 15, 30):
        deadline = time.monotonic() + 60
        while len(folders.read_rounds(folder)) < wanted and time.monotonic() < deadline:
            if process.poll() is not None:
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = subprocess.Popen(
            [*command, "resume", str(folder)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
    assert process.wait(timeout=120) == 0
    assert np.array_equal(weights(folder)["weight"], weights(whole)["weight"])
    found = verify(folder)
    assert found["valid"], found["problems"]
    assert found["spent_epsilon"] == verify(whole)["spent_epsilon"]


def test_an_exhausted_budget_keeps_the_model_of_the_last_round(tmp_path):
    budget = small().plan.epsilon(rounds=3)
    outcome = runs.start(small(f"budget={budget}"), tmp_path / "r")
    assert outcome.exhausted is not None
    assert outcome.summary()["rounds"] == 3
    assert outcome.summary()["epsilon"] <= budget
    assert verify(tmp_path / "r")["valid"]


def test_a_folder_with_another_run_is_refused_and_untouched(finished):
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="already holds files"):
        runs.start(small(), finished)
    assert before == {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}


@pytest.mark.parametrize("setting", ["task=nothing", "device=tpu", "plan.num_clients=59999999999"])
def test_wrong_input_leaves_no_folder_behind(setting, tmp_path):
    recipe = recipes.read("digits", [setting]) if setting.startswith("plan") else small(setting)
    with pytest.raises(InputError):
        runs.start(recipe, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_runs_are_compared_on_one_page(finished, tmp_path):
    other = tmp_path / "unsmoothed"
    runs.start(small("denoiser.strength=0", "evaluate_every=4"), other)
    assert [log.accuracy is None for log in folders.read_rounds(other)] == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]
    compare([finished, other], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure") == 3  # accuracy, loss, ε
    assert "unsmoothed" in page


def test_a_damaged_checkpoint_is_refused(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    raw = bytearray((copy / FILE).read_bytes())
    raw[-1] ^= 1
    (copy / FILE).write_bytes(raw)
    with pytest.raises(InputError, match="is damaged"):
        Checkpoint.load(copy)
    with pytest.raises(InputError, match="is damaged"):
        runs.resume(copy)


def test_no_folder_no_run(tmp_path):
    with pytest.raises(InputError, match="is not a run folder"):
        runs.resume(tmp_path)
