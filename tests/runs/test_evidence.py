"""Spent privacy is never forgotten: whatever shows more rounds than the ledger stops the run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from dpfedls import InputError
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import FILE
from dpfedls.runs.folder import read_rounds
from dpfedls.runs.seal import SEALED, seal
from dpfedls.runs.verify import read_statement, verify

ROUNDS = 5
PAIR = ("ledger.sqlite", str(FILE))


def small(mode="deployed"):
    settings = ["plan.num_clients=60", f"plan.rounds={ROUNDS}", "plan.noise_multiplier=1.0"]
    return recipes.read("synthetic", [*settings, f"mode={mode}"])


class Stop(Exception):
    pass


@pytest.fixture(scope="module", params=["deployed", "simulation"])
def half_and_whole(request, tmp_path_factory):
    """A run stopped after two rounds, and the same run finished."""
    half, whole = (tmp_path_factory.mktemp(request.param) / name for name in ("half", "whole"))

    def stop(log):
        if log.round == 2:
            raise Stop

    with pytest.raises(Stop):
        runs.start(small(request.param), half, [stop])
    shutil.copytree(half, whole)
    runs.resume(whole)
    assert verify(whole)["valid"]
    return half, whole


@pytest.fixture
def whole(half_and_whole, tmp_path):
    return shutil.copytree(half_and_whole[1], tmp_path / "whole")


@pytest.fixture
def half(half_and_whole, tmp_path):
    return shutil.copytree(half_and_whole[0], tmp_path / "half")


def content(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def put_back(old, new, names):
    for name in names:
        shutil.copy(old / name, new / name)


def refused(folder, why):
    before = content(folder)
    with pytest.raises(InputError, match=why) as error:
        runs.resume(folder)
    assert "\n" not in str(error.value)
    assert content(folder) == before


LEFT = [name for name in (*SEALED, "privacy.json") if name not in ("recipe.toml", "ledger.sqlite")]


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("left", LEFT)
def test_any_file_of_a_run_without_its_ledger_stops_it(whole, left, empty):
    for name in set(LEFT) - {left}:
        (whole / name).unlink()
    (whole / "ledger.sqlite").unlink()
    if empty:
        (whole / "ledger.sqlite").touch()
    refused(whole, "missing or empty although the run has begun")


def test_an_old_ledger_and_checkpoint_under_a_newer_log(half_and_whole, whole):
    for name in ("model.safetensors", "report.html", "privacy.json"):
        (whole / name).unlink()
    put_back(half_and_whole[0], whole, PAIR)
    refused(whole, "lists 5 rounds, but this ledger paid for 2")


@pytest.mark.parametrize("left", ["model.safetensors", "report.html", "privacy.json"])
def test_an_old_ledger_checkpoint_and_log_under_what_ends_a_run(half_and_whole, whole, left):
    for name in {"model.safetensors", "report.html", "privacy.json"} - {left}:
        (whole / name).unlink()
    put_back(half_and_whole[0], whole, (*PAIR, "rounds.jsonl"))
    refused(whole, f"{left} was written at the end of a run")


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("ended", [True, False])
def test_a_checkpoint_from_before_a_payment(half_and_whole, whole, gone, ended):
    """Fresh noise would be a second release; with the same noise it is the same run."""
    for name in () if ended else ("model.safetensors", "report.html", "privacy.json"):
        (whole / name).unlink()
    (whole / FILE).unlink() if gone else put_back(half_and_whole[0], whole, [FILE])
    if "deployed" in str(half_and_whole[0]):
        refused(whole, "holds 0 rounds" if gone else "holds 2 rounds")
    else:
        runs.resume(whole)
        assert (whole / FILE).read_bytes()[-400:] == (half_and_whole[1] / FILE).read_bytes()[-400:]


def test_the_checkpoint_of_the_round_before_the_last_is_not_sealed(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        runs.start(small(), folder, [lambda log: 1 / (log.round - ROUNDS + 1)])
    state = (folder / FILE).read_bytes()
    runs.resume(folder)
    (folder / FILE).write_bytes(state)
    refused(folder, "is not the checkpoint that privacy.json was made from")


def test_a_statement_of_another_run(whole, tmp_path):
    runs.start(runs.read_recipe(whole), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "privacy.json", whole)
    refused(whole, "was made from another ledger")


def edit(folder, number, **values):
    lines = (folder / "rounds.jsonl").read_bytes().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values).encode()
    (folder / "rounds.jsonl").write_bytes(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize("number", [1, ROUNDS])
@pytest.mark.parametrize("values", [{"accuracy": 0.9999}, {"epsilon": 0.01}])
def test_an_edited_line_is_not_sealed_by_resuming(whole, number, values):
    edit(whole, number, **values)
    refused(whole, "was altered or removed")
    seal(whole, {k: v for k, v in read_statement(whole).items() if k != "files"})
    assert any("rounds.jsonl was altered" in problem for problem in verify(whole)["problems"])


@pytest.mark.parametrize("number", [1, 2])
def test_an_edited_line_of_a_run_that_was_stopped(half, number):
    edit(half, number, accuracy=0.9999)
    refused(half, "was altered or removed")


def test_a_log_that_lost_its_end(half):
    lines = (half / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (half / "rounds.jsonl").write_bytes(lines[0])
    refused(half, "was altered or removed")
    (half / "rounds.jsonl").unlink()
    refused(half, "was altered or removed")


def test_how_long_a_round_took_is_not_part_of_the_chain(half_and_whole):
    """A round that is run again after a crash takes another time and is still the same release."""
    folder = half_and_whole[1]
    lines = (folder / "rounds.jsonl").read_bytes().splitlines()
    assert all("seconds" in json.loads(line) for line in lines) == ("simulation" in str(folder))


def test_what_a_crash_left_while_writing_the_recipe_is_no_dead_end(tmp_path):
    """Neither for ``run``, to which the folder is free, nor for ``resume`` afterwards."""
    folder = tmp_path / "run"
    folder.mkdir()
    left = folder / f".recipe.toml.{'0' * 16}.part"
    left.write_bytes(b"half")
    runs.start(small(), folder)
    assert verify(folder)["valid"]
    assert not left.exists()
    assert len(read_rounds(folder)) == ROUNDS


def test_each_step_of_a_round_is_on_disk_before_the_next(tmp_path, monkeypatch):
    """What a power cut keeps is always a whole run: a round to evaluate, or its line and state."""
    steps = []

    def note(verb, real):
        def noted(first, *rest):
            path = Path(os.readlink(f"/proc/self/fd/{first}") if verb == "sync" else rest[0])
            steps.append((verb, path.name.split(".")[0] or path.name.split(".")[1]))
            return real(first, *rest)

        return noted

    def clear(log):
        steps.append(("round", str(log.round)))

    monkeypatch.setattr(os, "fsync", note("sync", os.fsync))
    monkeypatch.setattr(os, "replace", note("name", os.replace))
    runs.start(small(), tmp_path / "run", [clear])
    start = steps.index(("round", "2"))
    state = [("sync", "state"), ("name", "state"), ("sync", "checkpoint")]
    found = steps[start + 1 : steps.index(("round", "3"))]
    assert found == [*state, ("sync", "rounds"), *state]
    assert steps.index(("sync", "recipe")) < steps.index(("name", "recipe"))
    assert steps[steps.index(("name", "recipe")) + 1] == ("sync", "run")
