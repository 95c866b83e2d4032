from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from typer.testing import CliRunner

from dpfedls import InputError
from dpfedls.commands.deploy import app
from dpfedls.flower.app import FILES, find_app, read_app_recipe, write_app
from dpfedls.flower.credentials import write_certificates, write_node_key
from dpfedls.flower.local import _settings, workplace
from dpfedls.flower.promise import NOISE_ALONE
from dpfedls.runs import recipes
from dpfedls.runs.verify import read_statement


def init(*arguments):
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


def test_init_writes_an_app_that_flower_accepts(tmp_path):
    done = init(tmp_path / "f", "--recipe", "synthetic", "--set", "plan.rounds=7", "--json")
    assert done.exit_code == 0, done.output
    assert [Path(f) for f in json.loads(done.stdout)["files"]] == [
        tmp_path / "f" / f for f in FILES
    ]
    config, warnings = load_and_validate(tmp_path / "f" / "pyproject.toml")
    del sys.modules["federation"]  # Flower imports it to look; every app's package has this name
    assert config["tool"]["flwr"]["app"]["components"]["serverapp"] == "federation.server:app"
    assert not warnings
    assert build_fab_from_disk(tmp_path / "f")
    recipe = recipes.read(str(tmp_path / "f" / "federation" / "recipe.toml"))
    assert recipe.mode == "deployed"
    assert recipe.plan.rounds == 7
    assert recipe.plan.noise_multiplier is not None


def test_init_says_that_rates_suit_the_recipes_own_model(tmp_path):
    done = init(tmp_path / "f", "--recipe", "automatic", "--json")
    assert done.exit_code == 0, done.output
    assert "were chosen for the model of 'automatic'" in done.stderr
    assert "were chosen" not in init(tmp_path / "g", "--recipe", "synthetic").stderr


def test_init_touches_no_folder_that_is_in_use(tmp_path):
    (tmp_path / "mine.txt").write_text("dear")
    with pytest.raises(InputError, match="already holds files"):
        write_app(tmp_path, recipes.read("synthetic"), {})
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_settings_survive_odd_paths(tmp_path):
    folder = tmp_path / 'a "quoted" näme'
    write_app(folder, recipes.read("demo"), {"run-folder": str(folder), "wait-for-nodes": 2})
    values = tomllib.loads((folder / "pyproject.toml").read_text())
    assert values["tool"]["flwr"]["app"]["config"]["run-folder"] == str(folder)


def test_an_own_app_keeps_its_own_patience(tmp_path):
    assert set(_settings(tmp_path, 4)) == {"run-folder", "wait-for-nodes"}


def test_keys_are_readable_by_their_owner_alone(tmp_path):
    write_certificates(tmp_path)
    write_node_key(tmp_path / "node.key")
    for name in ("server.key", "node.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "node.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert not (tmp_path / "ca.key").exists()


@pytest.mark.parametrize("wrong", [["--nodes", "0"], ["--set", "task=nothing"]])
def test_wrong_input_starts_nothing(tmp_path, wrong):
    done = CliRunner().invoke(app, ["local", "synthetic", "--out", str(tmp_path / "r"), *wrong])
    assert isinstance(done.exception, InputError)
    assert not (tmp_path / "r").exists()


def test_without_flower_the_remedy_is_named():
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "import dpfedls.flower\n"
        "try: dpfedls.flower.DPFedLS\n"
        "except dpfedls.InputError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dpfedls[flower]'" in done.stdout


def running(mark):
    """Processes whose environment carries the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_ctrl_c_stops_everything_and_nothing_is_left_at_home(tmp_path):
    """Interrupted while the federation is coming up: every process it started ends with it."""
    mark = f"DPFEDLS_TEST={tmp_path}"
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    # A shell that started the tests in the background has Ctrl-C ignored, which is inherited.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dpfedls.commands.deploy import app; app()"
    )
    command = [sys.executable, "-c", code, "local", "synthetic", "--out", str(tmp_path / "r")]
    process = subprocess.Popen(
        command,
        env=os.environ
        | {"DPFEDLS_TEST": str(tmp_path), "HOME": str(home), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(temporary.glob("*/node-0.pub")):  # the SuperLink is up by now
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert f"--out {tmp_path / 'r'}" in said
    deadline = time.monotonic() + 20
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not running(mark)
    assert not list(home.iterdir())
    assert not list(temporary.iterdir())


def test_a_recipe_inside_an_app_is_refused_and_the_app_named(tmp_path):
    """Alone it would train the recipe's own data, and leave the person's loader out in silence."""
    assert init(tmp_path / "f", "--recipe", "synthetic").exit_code == 0
    inside = tmp_path / "f" / "federation" / "recipe.toml"
    done = CliRunner().invoke(app, ["local", str(inside), "--out", str(tmp_path / "r")])
    assert isinstance(done.exception, InputError)
    assert f"dpfedls deploy local {tmp_path / 'f'}" in str(done.exception)
    assert not (tmp_path / "r").exists()
    assert find_app(str(tmp_path / "f")) == tmp_path / "f"
    assert "dpfedls deploy local f --nodes" in (tmp_path / "f" / "README.md").read_text()


def test_what_is_no_app_and_what_an_app_does_not_take_is_said(tmp_path):
    with pytest.raises(InputError, match="without a Flower app"):
        find_app(str(tmp_path))
    assert init(tmp_path / "f", "--recipe", "synthetic").exit_code == 0
    done = CliRunner().invoke(app, ["local", str(tmp_path / "f"), "--set", "plan.rounds=2"])
    assert "edit its recipe.toml" in str(done.exception)
    (tmp_path / "f" / "federation" / "recipe.toml").unlink()
    with pytest.raises(InputError, match="keep recipe"):
        read_app_recipe(tmp_path / "f")


def test_fixed_size_cohorts_need_a_word(tmp_path):
    fixed = ["--recipe", "synthetic", "--set", 'plan.sampler={kind="fixed", cohort=7}']
    done = init(tmp_path / "f", *fixed)
    assert isinstance(done.exception, InputError)
    assert "reveal_cohorts" in str(done.exception)
    assert init(tmp_path / "f", *fixed, "--reveal-cohorts").exit_code == 0
    assert read_app_recipe(tmp_path / "f").nodes.reveal_cohorts


MARKED = """

from torch.utils.data import Dataset  # a person may be a Dataset too


class Own(Dataset):
    def __init__(self, pair):
        self.pair = pair

    def __len__(self):
        return len(self.pair[1])

    def __getitem__(self, i):
        open({marker!r}, "a").close()
        return self.pair[0][i], self.pair[1][i]


def own_people(context):
    return {{j: Own(pair) for j, pair in people(context).items()}}


app = client_app(recipe, model=lambda: task().model, people=own_people)
"""


@pytest.mark.parametrize(
    "said", ["round 1: accuracy 90 %", f"round 1: none counts, so {NOISE_ALONE}"]
)
def test_logs_of_a_federation_in_which_nobody_counted_are_kept(said, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with workplace() as place:
        for name, text in (("key", "secret"), ("logs/run.log", said), ("logs/node-0.log", "why")):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    loud = NOISE_ALONE in said
    assert left == ({"run.log", "node-0.log"} if loud else set())  # no key
    assert ("said in their logs" in caplog.text) == loud


def test_deploy_local_runs_the_very_app_with_its_own_loader(tmp_path):
    """On a real SuperLink with a SuperNode; each round shows in what Flower streams."""
    settings = ["--set", "plan.num_clients=40", "--set", "plan.rounds=1"]
    settings += ["--set", "plan.sampler.rate=1.0", "--set", "calibrate.epsilon=20"]
    assert init(tmp_path / "f", "--recipe", "synthetic", *settings).exit_code == 0
    marker = tmp_path / "my loader was used"
    with (tmp_path / "f" / "federation" / "client.py").open("a") as file:
        file.write(MARKED.format(marker=str(marker)))
    command = ["local", str(tmp_path / "f"), "--nodes", "1", "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert marker.exists()
    found = json.loads(done.stdout)
    assert found["rounds"] == 1
    assert found["mode"] == "deployed"
    assert found["seconds_per_round"] is None  # time follows the size of the cohort, a secret
    assert "seconds" not in (tmp_path / "r" / "rounds.jsonl").read_text()
    observers = read_statement(tmp_path / "r")["observers"]
    assert [row["observer"] for row in observers][2] == "all other nodes together"
