"""A run folder may come from anybody: it costs one line, little memory, no waiting."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from torch import nn

import dpfedls
from dpfedls import InputError
from dpfedls.commands.output import answer, printable
from dpfedls.privacy.bounded import read_bounded
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.folder import read_rounds
from dpfedls.runs.seal import SEALED
from dpfedls.runs.verify import verify

NAMES = (*SEALED, "privacy.json")
DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    settings = ["plan.num_clients=60", "plan.rounds=2", "plan.noise_multiplier=1.0"]
    runs.start(recipes.read("synthetic", settings), folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def looked_at(folder):
    """What verify says: problems, or its one line."""
    try:
        found = verify(folder)
        assert not found["valid"]
        return found["problems"][0]
    except InputError as error:
        return str(error)


@contextmanager
def little_memory():
    """No more than two further gigabytes of address space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**31, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_file_of_20_gigabytes_is_not_read(copy, name):
    os.truncate(copy / name, 20 * 2**30)
    with little_memory():
        said = looked_at(copy)
    assert "\n" not in said
    assert name in said


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(copy, name):
    (copy / name).unlink()
    os.mkfifo(copy / name)
    assert "\n" not in looked_at(copy)
    with pytest.raises(InputError) as error:
        runs.resume(copy)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["recipe.toml", "rounds.jsonl", "privacy.json"])
def test_brackets_thousands_deep(copy, name):
    (copy / name).write_text({"recipe.toml": f"x = {DEEP}"}.get(name, f"{DEEP}\n"))
    assert "\n" not in looked_at(copy)
    if name == "recipe.toml":
        with pytest.raises(InputError, match="not valid TOML"):
            runs.resume(copy)


def test_a_setting_thousands_deep():
    with pytest.raises(InputError, match="nested too deeply") as error:
        recipes.read("synthetic", [f"seed={DEEP}"])
    assert len(str(error.value)) < 200


def test_a_misspelt_mode_is_named(copy):
    text = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(text.replace('"simulation"', '"simulaton"'))
    with pytest.raises(InputError, match="simulaton"):
        verify(copy)


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"files": 3}', "{}"])
def test_a_statement_that_is_none(copy, content):
    (copy / "privacy.json").write_text(content)
    assert "\n" not in looked_at(copy)
    with pytest.raises(InputError, match=r"no readable privacy.json|not the file"):
        dpfedls.load(copy, nn.Linear(64, 4))


@pytest.mark.parametrize(
    "line", ['{"round": 3}', '{"round": 1, "epsilon": "x"}', "[3]", "3", "{", '{"\xa9": 1}']
)
def test_a_line_of_the_log_that_is_none(copy, line):
    lines = (copy / "rounds.jsonl").read_text().splitlines()
    (copy / "rounds.jsonl").write_bytes("\n".join([line, *lines]).encode("latin-1"))
    assert "\n" not in looked_at(copy)
    with pytest.raises(InputError, match="line 1 cannot be read"):
        read_rounds(copy)


def test_no_altered_model_is_loaded(copy):
    """60 flipped bytes all over the file; 32 of them once passed for the run's model."""
    path, model = copy / "model.safetensors", nn.Linear(64, 4)
    good = path.read_bytes()
    dpfedls.load(copy, model)
    for where in np.linspace(0, len(good) - 1, 60).astype(int):
        bad = bytearray(good)
        bad[where] ^= 1
        path.write_bytes(bad)
        with pytest.raises(InputError, match=r"is not the file that privacy\.json was made from"):
            dpfedls.load(copy, model)


def test_control_characters_are_seen_and_not_obeyed(capsys):
    """A statement or a file's name could otherwise rewrite what a terminal shows."""
    assert printable("a\x1b[2Jb\x9bc\td\ne\r") == "a\\x1b[2Jb\\x9bc\td\ne\\r"
    answer({"a": "\x1b\x9b"}, True, "")
    answer({}, False, "\x1b[31mvalid")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x9b" not in said


def test_bounded_reading_says_how_much_it_takes(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    with pytest.raises(InputError, match="has 5 bytes, but dpfedls never writes more than 4"):
        read_bounded(tmp_path / "file", 4)


@pytest.mark.parametrize("name", ["ledger.sqlite", "rounds.jsonl", "privacy.json"])
def test_resuming_after_damage_is_refused_in_one_line_or_mends_it(finished, tmp_path, name):
    """Flipped bytes and cuts, then ``resume``: never another ε, never a run that is not valid."""
    folder, rng = tmp_path / "copy", np.random.default_rng(11)
    spent, good = verify(finished)["spent_epsilon"], (finished / name).read_bytes()
    for k in range(12):
        shutil.copytree(finished, folder)
        where, bad = int(rng.integers(len(good))), bytearray(good)
        bad[where:] = [] if k % 6 == 0 else [bad[where] ^ 0x95, *bad[where + 1 :]]
        (folder / name).write_bytes(bad)
        try:
            runs.resume(folder)
        except InputError as error:
            said = str(error)
            assert "\n" not in said
        else:
            found = verify(folder)
            assert (found["valid"], found["spent_epsilon"]) == (True, spent), (k, where)
        shutil.rmtree(folder)
