from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from torch import nn

from dpfedls import InputError
from dpfedls.parameters import Layout
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs import verify as verifying
from dpfedls.runs.checkpoint import FILE
from dpfedls.runs.folder import read_rounds
from dpfedls.runs.model_file import model_metadata, trained_vector
from dpfedls.runs.seal import seal
from dpfedls.runs.verify import read_statement, verify


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


def remembered(function):
    """A pure function that computes each answer once."""
    known = {}

    def ask(*given, **named):
        key = repr((given, named))
        if key not in known:
            known[key] = function(*given, **named)
        return known[key]

    return ask


@pytest.mark.parametrize("name", ["ledger.sqlite", str(FILE)])
def test_any_flipped_byte_or_cut_is_noticed(name, copy, monkeypatch):
    """2,000 random alterations of each file, every one of them noticed."""
    for pure in ("statement", "spent_epsilon"):  # most of the time, and always the same
        monkeypatch.setattr(verifying, pure, remembered(getattr(verifying, pure)))
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
        (
            lambda f: rewrite(f / "privacy.json", lambda v: v.update(epsilon=0.1)),
            "says epsilon = 0.1",
        ),
        (
            lambda f: rewrite(f / "privacy.json", lambda v: v.update(ledger_head="0")),
            "not made from this ledger",
        ),
        (lambda f: (f / "privacy.json").unlink(), "no readable privacy.json"),
        (lambda f: (f / "ledger.sqlite").unlink(), "ledger.sqlite is missing"),
        (lambda f: (f / FILE).unlink(), "is missing although rounds were paid"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "report.html").unlink(), "report.html is missing"),
        (
            lambda f: rewrite(f / "privacy.json", lambda v: v["files"].pop("report.html")),
            "report.html is not among the files",
        ),
        (
            lambda f: rewrite(f / "privacy.json", lambda v: v.pop("files")),
            "does not list the digests",
        ),
        (
            lambda f: rewrite(f / "privacy.json", lambda v: v.update(approved="yes")),
            "privacy.json was altered since it was written",
        ),
        (lambda f: (f / "privacy.json").write_text("[1]"), "no readable privacy.json"),
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
            "is not the recipe that the ledger was opened for",
        ),
    ],
)
def test_each_problem_is_named(copy, change, problem):
    change(copy)
    found = verify(copy)
    assert not found["valid"]
    assert any(problem in line for line in found["problems"]), found["problems"]


def test_a_smaller_epsilon_in_the_report_is_noticed(copy):
    """The report is what people read, so it is evidence too."""
    page = (copy / "report.html").read_text()
    epsilon = f"ε = {verify(copy)['spent_epsilon']:.4g}"
    assert epsilon in page
    (copy / "report.html").write_text(page.replace(epsilon, "ε = 0.1"))
    found = verify(copy)
    assert found["problems"] == ["report.html is not the file that privacy.json was made from"]


def test_another_model_is_noticed_even_if_the_seal_is_made_anew(copy):
    """Swapped weights, then digests to match: the checkpoint still knows what was released."""
    raw = bytearray((copy / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (copy / "model.safetensors").write_bytes(raw)
    facts = {k: v for k, v in read_statement(copy).items() if k != "files"}
    seal(copy, facts)
    assert verify(copy)["problems"] == [
        "model.safetensors does not hold the weights of the checkpoint"
    ]
    (copy / "model.safetensors").write_bytes(raw[:40])
    seal(copy, facts)
    assert "is not a model that dpfedls wrote" in verify(copy)["problems"][0]


def test_a_model_whose_tensors_are_not_in_the_order_of_their_names_is_the_checkpoints(tmp_path):
    """safetensors sorts by name; the flat vector goes through the modules, the frozen left out."""
    from safetensors.torch import save

    model = nn.Sequential()
    for name in ("z", "frozen", "a"):
        model.add_module(name, nn.Linear(2, 3))
    model.frozen.requires_grad_(False)
    layout = Layout.of(model)
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(model.state_dict(), model_metadata("simulation", layout.names)))
    assert trained_vector(path).tobytes() == layout.read(model).numpy().tobytes()


def listing(folder):
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def test_verifying_leaves_the_evidence_as_it_was(copy):
    before = listing(copy)
    assert verify(copy)["valid"]
    assert listing(copy) == before


def test_a_run_that_crashed_is_read_with_what_its_log_holds(copy, tmp_path):
    """The process dies in round 3, so the last payments are in the write-ahead log only."""
    code = """
import os, pathlib, sys
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
settings = ["plan.num_clients=60", "plan.rounds=5", "plan.noise_multiplier=1.0"]
def stop(log):
    if log.round == 3:
        os._exit(9)
runs.start(recipes.read("synthetic", settings), pathlib.Path(sys.argv[1]), [stop])
"""
    folder = tmp_path / "crashed"
    assert subprocess.run([sys.executable, "-c", code, str(folder)]).returncode == 9
    before = listing(folder)
    assert "ledger.sqlite-wal" in before
    found = verify(folder)
    assert listing(folder) == before
    assert 0 < found["spent_epsilon"] < verify(copy)["spent_epsilon"]
    assert [c["check"] for c in found["checks"] if not c["ok"]] == [
        "the run was finished and sealed"
    ]
    assert f"dpfedls resume {folder}" in found["problems"][0]
    runs.resume(folder)
    assert verify(folder)["valid"]


def test_the_verdict_says_what_was_looked_at(copy):
    found = verify(copy)
    assert (found["mode"], found["relation"]) == ("simulation", "add-or-remove-one")
    assert found["delta"] == pytest.approx(60**-1.1)
    assert len(found["checks"]) == 8
    assert all(check["ok"] and not check["detail"] for check in found["checks"])
    (copy / "rounds.jsonl").write_text("{")
    broken = {c["check"]: c["detail"] for c in verify(copy)["checks"] if not c["ok"]}
    assert "cannot be read" in broken["every round in the log was paid for"]


def test_a_round_released_but_not_paid_for_is_named(finished, tmp_path):
    """A ledger from an earlier moment beside a later checkpoint: a resumed round not paid for."""
    folder, ledgers = tmp_path / "r", []
    settings = ["plan.num_clients=60", "plan.rounds=5", "plan.noise_multiplier=1.0"]

    class Stop(Exception):
        pass

    def stop(log):
        raise Stop

    with pytest.raises(Stop):
        runs.start(recipes.read("synthetic", settings), folder, [stop])
    ledgers.append((folder / "ledger.sqlite").read_bytes())
    runs.resume(folder)
    (folder / "ledger.sqlite").write_bytes(ledgers[0])
    found = verify(folder)
    assert any("holds round 2, which was never paid for" in p for p in found["problems"])


FIELDS = {
    "mode": "deployed",
    "relation": "replace-one",
    "delta": 1e-9,
    "mu": 0.001,
    "not_covered": [],
    "curve": [],
    "group_privacy": [],
    "private": False,
    "epsilon": 1e-3,
    "epsilon_by_accountant": {"pld": 0.1},
    "enforced": ["everything"],
}


@pytest.mark.parametrize("key", FIELDS)
def test_no_field_of_the_statement_can_be_changed(copy, key):
    rewrite(copy / "privacy.json", lambda values: values.update({key: FIELDS[key]}))
    assert any(f"says {key}" in problem for problem in verify(copy)["problems"])


@pytest.mark.parametrize("inner", ["clip_norm", "noise_multiplier", "rounds_paid"])
def test_no_number_of_the_mechanism_can_be_changed(copy, inner):
    rewrite(copy / "privacy.json", lambda values: values["mechanism"].update({inner: 99}))
    said = f"says mechanism.{inner} = 99, but it is"
    assert any(said in problem for problem in verify(copy)["problems"])


def test_a_simulation_cannot_be_passed_off_as_deployed(copy):
    recipe = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(recipe.replace('mode = "simulation"', 'mode = "deployed"'))
    with pytest.raises(InputError, match="another plan, budget or recipe"):
        runs.resume(copy)
    assert any("noise is of another kind" in problem for problem in verify(copy)["problems"])


def test_a_recipe_edited_after_the_fact_is_refused(copy):
    recipe = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(recipe.replace("epochs = 2", "epochs = 3"))
    shutil.rmtree(copy / "checkpoint")
    with pytest.raises(InputError, match="another plan, budget or recipe"):
        runs.resume(copy)


def test_a_lost_or_foreign_ledger_is_refused(copy, finished, tmp_path):
    other = tmp_path / "other"
    runs.start(runs.read_recipe(finished), other)
    shutil.copy(other / "ledger.sqlite", copy / "ledger.sqlite")
    assert any("not made after any entry" in problem for problem in verify(copy)["problems"])
    with pytest.raises(InputError, match="never paid for"):
        runs.resume(copy)
    (copy / "ledger.sqlite").unlink()
    with pytest.raises(InputError, match="is missing or empty although the run has begun"):
        runs.resume(copy)
    assert verify(copy)["spent_epsilon"] == float("inf")


def test_a_long_run_that_its_budget_ended_is_valid(tmp_path):
    """More rounds than the display curve computes one by one."""
    settings = ["plan.num_clients=60", "plan.rounds=400", "plan.noise_multiplier=2.0", "budget=0.9"]
    outcome = runs.start(recipes.read("synthetic", settings), tmp_path / "r")
    assert outcome.exhausted is not None
    assert outcome.summary()["rounds"] > 48
    found = verify(tmp_path / "r")
    assert found["valid"], found["problems"]
    assert found["spent_epsilon"] == pytest.approx(outcome.summary()["epsilon"])
    logged = [log.epsilon for log in read_rounds(tmp_path / "r")]
    assert max(logged) <= 0.9


def test_a_run_without_privacy_is_kept_as_carefully(tmp_path):
    settings = [
        "plan.num_clients=60",
        "plan.rounds=3",
        "plan.clip_norm=inf",
        "plan.noise_multiplier=0",
    ]
    first = runs.start(recipes.read("synthetic", settings), tmp_path / "r").summary()
    json.loads((tmp_path / "r" / "privacy.json").read_text(), parse_constant=pytest.fail)
    again = runs.resume(tmp_path / "r").summary()
    assert (again["rounds"], again["accuracy"]) == (3, first["accuracy"])
    found = verify(tmp_path / "r")
    assert found["valid"], found["problems"]
    assert found["spent_epsilon"] == float("inf")


def test_a_line_that_cannot_be_read_is_not_thrown_away(copy):
    lines = (copy / "rounds.jsonl").read_text().splitlines()
    (copy / "rounds.jsonl").write_text("\n".join([lines[0], "{", *lines[2:]]))
    with pytest.raises(InputError, match="line 2 cannot be read"):
        read_rounds(copy)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        verify(tmp_path)
    (tmp_path / "recipe.toml").write_text("plan = 3")
    with pytest.raises(InputError, match="does not hold a readable plan"):
        verify(tmp_path)


def test_a_run_that_names_a_population_has_paid_into_it(tmp_path):
    settings = ["plan.num_clients=60", "plan.rounds=3", "plan.noise_multiplier=1.0"]
    account, other = tmp_path / "accounts" / "p.sqlite", tmp_path / "runs" / "other"
    recipe = recipes.read("synthetic", [*settings, f"population={account}", "budget=50.0"])
    folder = tmp_path / "runs" / "one"
    runs.start(recipe, folder)
    found = verify(folder)
    assert found["valid"], found["problems"]
    assert "every round was paid into the population p too" in [c["check"] for c in found["checks"]]
    # Another run's payments, same seed and nonces, are not this one's.
    kept = account.read_bytes()
    account.unlink()
    runs.start(recipe, other)
    assert verify(folder)["problems"] == ["round 1 was not paid into the population p"]
    account.write_bytes(kept[:-100])
    assert any("the population's account" in text for text in verify(folder)["problems"])
    account.unlink()
    found = verify(folder)
    assert found["valid"]
    assert "population p: its account" in found["not_checked"][0]


def test_a_statement_that_says_more_is_noticed(copy):
    rewrite(copy / "privacy.json", lambda values: values.update(cohort_sizes=[3, 4]))
    seal(copy, {k: v for k, v in read_statement(copy).items() if k != "files"})
    assert any("'cohort_sizes', which no statement has" in t for t in verify(copy)["problems"])
