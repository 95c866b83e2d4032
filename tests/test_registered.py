"""Short names that other packages register, loggers by name, and an example below each help."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from dpfedls import InputError, LaplacianSmoothing
from dpfedls.commands import main as cli
from dpfedls.commands.examples import EXAMPLES
from dpfedls.runs import recipes
from dpfedls.runs.loggers import CsvLogger, named_logger
from dpfedls.runs.record import RoundRecord

MODULE = """
import torch
from dpfedls import ClientData, Task

def make(num_clients, streams):
    x = torch.ones(num_clients, 3, 4)
    y = torch.zeros(num_clients, 3, dtype=torch.long)
    return Task(ClientData.from_pairs(zip(x, y)), torch.nn.Linear(4, 2), (x[0], y[0]))

class Half:
    def __init__(self, share=0.5):
        self.share = share
    def __call__(self, release):
        return self.share * release.value

seen = []
def log(folder):
    return lambda record: seen.append((folder.name, record.round))
"""
ENTRY_POINTS = """
[dpfedls.tasks]
hospital = hospital_tasks:make
demo-task = hospital_tasks:make
[dpfedls.denoisers]
half = hospital_tasks:Half
laplacian = hospital_tasks:Half
[dpfedls.loggers]
dashboard = hospital_tasks:log
"""
RECIPE = """
task = "hospital"
denoiser = { kind = "half", share = 0.25 }
[plan]
sampler = { kind = "poisson", rate = 0.5 }
num_clients = 10
rounds = 2
clip_norm = 1.0
noise_multiplier = 1.0
[local]
epochs = 1
"""


def install(folder, name="hospital"):
    """A package as pip leaves it: a module, and what it registers."""
    (folder / "hospital_tasks.py").write_text(MODULE)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)


@pytest.fixture
def dpfedls(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "hospital_tasks", raising=False)
    (tmp_path / "mine.toml").write_text(RECIPE)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["dpfedls", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().err

    return call


def test_a_registered_task_denoiser_and_logger_run_under_short_names(dpfedls, tmp_path):
    logs = ["--log", "dashboard", "--log", "csv"]
    code, err = dpfedls("run", "mine.toml", "--out", "r", *logs)
    assert code == 0, err
    kept = (tmp_path / "r" / "recipe.toml").read_text()
    assert 'task = "hospital_tasks:make"' in kept  # whole, so that nobody has to guess later
    assert 'kind = "hospital_tasks:Half"' in kept
    assert "share = 0.25" in kept
    assert sys.modules["hospital_tasks"].seen == [("r", 1), ("r", 2)]
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3
    code, err = dpfedls("resume", "r")
    assert code == 2
    assert "say so with --trust" in err
    (tmp_path / "r.csv").unlink()
    assert dpfedls("resume", "r", "--trust", "--log", "csv")[0] == 0
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3


def test_no_package_can_take_the_name_of_a_part(dpfedls):
    chosen = recipes.read("synthetic")
    assert chosen.denoiser == LaplacianSmoothing(strength=2.0)
    assert not chosen.own_code


def test_a_name_registered_twice_is_refused(dpfedls, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    install(tmp_path / "other", "clinic")
    about = tmp_path / "other" / "clinic-1.0.dist-info" / "entry_points.txt"
    about.write_text(ENTRY_POINTS.replace("hospital_tasks:make", "clinic_tasks:make"))
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    code, err = dpfedls("run", "mine.toml", "--out", "r")
    assert code == 2
    assert "is registered by several packages" in err
    assert err.count("\n") == 1


def test_loggers_by_name(tmp_path):
    logger = named_logger("csv", tmp_path / "runs" / "r")
    assert isinstance(logger, CsvLogger)
    logger(RoundRecord(round=1, epsilon=0.5))
    assert (tmp_path / "runs" / "r.csv").read_text() == "round,epsilon\n1,0.5\n"
    assert not (tmp_path / "runs" / "r").exists()  # a run folder must be new
    with pytest.raises(InputError, match="unknown logger 'cvs'; did you mean 'csv'"):
        named_logger("cvs", tmp_path / "r")


def test_every_command_has_an_example_and_every_example_parses():
    tree = typer.main.get_command(cli.app)

    def commands(group, path=""):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, f"{path}{name} ")
            else:
                yield f"{path}{name}", command

    found = dict(commands(tree))
    assert len(found) > 15
    for name, command in found.items():
        assert name in EXAMPLES, f"give {name!r} an example in commands/examples.py"
        assert f"Example: {EXAMPLES[name]}" in command.epilog
        words = shlex.split(EXAMPLES[name])[1 + len(name.split()) :]
        assert EXAMPLES[name].startswith(f"dpfedls {name}")
        command.make_context(name, words)  # a wrong option or a missing one raises


def test_a_shell_can_complete_commands():
    told = {"_DPFEDLS_COMPLETE": "complete_bash", "COMP_WORDS": "dpfedls pla", "COMP_CWORD": "1"}
    command = str(Path(sys.executable).with_name("dpfedls"))
    done = subprocess.run([command], env=os.environ | told, capture_output=True, text=True)
    assert done.stdout.split() == ["planner"], done.stderr
