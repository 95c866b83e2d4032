"""``dpfedls.audit`` takes what ``train`` takes; a run's folder is looked at and not touched."""

from __future__ import annotations

import hashlib
import json
import types

import pytest
import torch
from torch import nn

import dpfedls
from dpfedls import InputError
from dpfedls.auditing import noise
from dpfedls.auditing.kept import kept_problems
from dpfedls.commands import main as cli
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from federations import linear_clients, local, plan


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(noise, "DRAWS", 2**16)


class Running:
    """A person's own denoiser, with a memory in the checkpoint and one of its own."""

    def __init__(self):
        self.calls = 0

    def start(self, layout):
        return {"mean": torch.zeros(layout.dim)}

    def __call__(self, release, memory):
        self.calls += 1
        mean = memory["mean"] + (release.value - memory["mean"]) / (self.calls + 1)
        return mean, {"mean": mean}


def arguments(**changes):
    torch.manual_seed(0)
    values = {
        "model": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        "clients": linear_clients(20),
        "plan": plan(),
        "local": local(),
        "denoiser": Running(),
        "test": linear_clients(1, seed=4)[0],
        "engine": "vmapped",
    }
    return values | changes


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in files
    }


def test_own_model_people_and_denoiser_are_audited_as_train_would_use_them(tmp_path):
    """False alarms: about 3e-4, in the deployed part only, since the rest is seeded."""
    folder = tmp_path / "mine"
    given = arguments(folder=folder, mode="deployed")
    found = dpfedls.audit(**given, trials=60)
    assert found["problems"] == []
    assert found["folder"] is None
    assert not folder.exists()
    dpfedls.train(**given)
    (folder / "total.npy").write_bytes(b"raw")
    before = digests(folder)
    found = dpfedls.audit(**given, trials=60)
    assert found["problems"] == ["the run folder: total.npy should not be in the run folder"]
    assert found["folder"] == str(folder)
    assert digests(folder) == before


def test_a_denoiser_that_leaves_nothing_of_a_release_raises_no_alarm():
    """The model stays as it was, and yet the round had a step: the log says so."""
    given = arguments(denoiser=lambda release: torch.zeros_like(release.value))
    assert dpfedls.audit(**given, trials=60)["problems"] == []


def test_a_loss_that_carries_one_person_to_the_next_is_found():
    """Where the trial before a run cannot see it: in a module, and not of two samples."""
    kept = types.ModuleType("kept")
    kept.last = torch.ones(())

    def remembering(outputs, targets):
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        if len(targets) == 2:
            return losses
        scaled, kept.last = losses * kept.last.clamp(0.5, 2.0), losses.detach().mean()
        return scaled

    given = arguments(loss=remembering, engine="looped")
    problems = dpfedls.audit(**given, trials=60)["problems"]
    assert any("another person's update" in text for text in problems), problems


def test_another_recipes_folder_is_refused(tmp_path):
    given = arguments(folder=tmp_path / "mine")
    dpfedls.train(**given)
    with pytest.raises(InputError, match="another recipe"):
        dpfedls.audit(given.pop("model"), given.pop("clients"), **given | {"seed": 7})


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "deployed"
    settings = ["plan.num_clients=40", "plan.rounds=4", "plan.noise_multiplier=1.0"]
    runs.start(recipes.read("synthetic", [*settings, "mode=deployed"]), folder)
    return folder


def test_the_command_audits_a_run_folder_and_writes_nothing(deployed, monkeypatch, capsys):
    before = digests(deployed)
    words = ["dpfedls", "audit", str(deployed), "--canaries", "0", "--trials", "60", "--json"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    found = json.loads(capsys.readouterr().out)
    assert (ended.value.code, found["problems"]) == (0, [])
    assert found["checks"]["the run folder"] == 0
    assert digests(deployed) == before
    monkeypatch.setattr("sys.argv", [*words, "--set", "plan.rounds=2"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2


def test_a_folder_of_first_rounds_is_consistent_too(tmp_path):
    """A run that stops after its second round, its ledger closed or not."""

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "begun"
    settings = ["plan.num_clients=40", "plan.rounds=4", "plan.noise_multiplier=1.0"]
    with pytest.raises(KeyboardInterrupt):
        runs.start(recipes.read("synthetic", [*settings, "mode=deployed"]), folder, [stop])
    assert kept_problems(folder) == []
    log = folder / "rounds.jsonl"
    first = json.loads(log.read_bytes().splitlines()[0])
    log.write_bytes(json.dumps(first | {"seconds": 1.5}).encode() + b"\n")
    assert "'seconds' should not be in rounds.jsonl" in kept_problems(folder)


def test_a_folder_of_train_names_the_way(tmp_path):
    dpfedls.train(**arguments(folder=tmp_path / "mine"))
    from dpfedls.auditing.kept import recipe_of_run

    with pytest.raises(InputError, match=r"dpfedls\.audit"):
        recipe_of_run(tmp_path / "mine", trust=False)
