"""A person's own denoiser, loss, metric, model or task: tried first, noted by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from trainings import Remember, Scale, one_loss, other_loss, stop_after, train, weights

import dpfedls
from dpfedls import InputError, Momentum
from dpfedls.auditing.kept import kept_problems
from dpfedls.commands import main as cli
from dpfedls.tasks import own


def test_a_run_that_goes_on_with_other_code_names_both(tmp_path, caplog):
    """In one line and in the notes; a mended loss must not cost the whole run's privacy again."""
    by = {own.settings_digest(Scale(value)): str(value) for value in (0.3, 0.9)}
    for last, loss, value, expected in (
        (1, one_loss, 0.3, (False, ["one_loss", "0.3"])),
        (2, one_loss, 0.3, (False, ["one_loss", "0.3"])),
        (3, one_loss, 0.9, (True, ["0.3", "one_loss", "0.9"])),
        (4, other_loss, 0.9, (True, ["0.3", "one_loss", "other_loss", "0.9"])),
    ):
        found = []

        def stop(record, last=last, found=found):
            found.append(record)
            if record.round == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(folder=tmp_path / "r", loss=loss, denoiser=Scale(value), watch=[stop])
        assert len(found) == 1
        notes = json.loads((tmp_path / "r" / "notes.json").read_text())["own_code"]
        names = [
            by.get(code.get("settings_sha256"), code["name"].partition(":")[2]) for code in notes
        ]
        assert ("with other code of your own" in caplog.text, names) == expected
        caplog.clear()


class Telling:
    """A loss that keeps what it saw of private samples, and a secret, as people's own do."""

    def __init__(self, log):
        self.api_key, self.counts, self.last, self.log = "sk-secret", [71.25, 66.5], 0.0, log

    def __call__(self, outputs, targets):
        losses = one_loss(outputs, targets)
        self.last = losses.mean().item()
        note(self.log, self.last)
        return losses


class TellingModel(nn.Linear):
    """A model that does the same."""

    log = ""

    def forward(self, features):
        self.api_key, self.last = "sk-secret", float(features[0, 0])
        note(self.log, self.last)
        return super().forward(features)


def note(log, value):
    """For this test alone: in a file, since a run refuses what its copies would share."""
    with open(log, "a", encoding="utf-8") as lines:
        lines.write(f"{value!r}\n")


class SecretScale(Scale):
    """A denoiser with a secret."""

    def __init__(self):
        super().__init__(0.3)
        self.api_key = "sk-secret"


def test_nothing_that_own_code_holds_is_written(tmp_path):
    """Neither in clear nor as a digest that could be guessed; nor once it has trained already."""
    log = str(tmp_path / "seen")
    loss, model, folder = Telling(log), TellingModel(4, 3), tmp_path / "r"
    model.log = log
    given = {"model": model, "loss": loss, "denoiser": SecretScale(), "test": None}
    given |= {"metrics": {"mae": Telling(log)}, "mode": "deployed", "engine": "looped"}
    with pytest.raises(KeyboardInterrupt):
        train(folder=folder, watch=[stop_after(2)], **given)
    path = folder / "notes.json"
    before = json.loads(path.read_text())
    before["own_code"][0]["settings"] = {"api_key": "'sk-secret'"}  # as earlier versions did
    path.write_text(json.dumps(before))
    train(folder=folder, **given)
    seen = Path(log).read_text().split()
    private = {"sk-secret", "71.25", *(value for value in seen if len(value) > 8)}
    assert len(private) > 20
    for file in filter(Path.is_file, folder.rglob("*")):
        raw = file.read_bytes()
        assert not [value for value in private if value.encode() in raw], file
    noted = json.loads(path.read_text())["own_code"]
    code = own.source_digest(Telling)
    assert [entry.keys() - {"settings_sha256"} for entry in noted] == [
        {"used_as", "name", "sha256"}
    ] * 4
    assert {entry["sha256"] for entry in noted} == {code}
    assert [entry["used_as"] for entry in noted if "settings_sha256" in entry] == ["denoiser"]
    assert kept_problems(folder) == []


def test_memory_makes_a_difference_and_is_sealed(tmp_path):
    plain, remembering = train(), train(denoiser=Remember(), folder=tmp_path / "r")
    assert not torch.equal(weights(plain.model), weights(remembering.model))
    kept = load_file(tmp_path / "r" / "checkpoint" / "state.safetensors")
    assert kept["memory.count"].tolist() == [6]
    assert "trainings:Remember" in (tmp_path / "r" / "recipe.toml").read_text()
    (noted,) = json.loads((tmp_path / "r" / "notes.json").read_text())["own_code"]
    assert noted["used_as"] == "denoiser"
    assert len(noted["sha256"]) == 64


def test_a_denoiser_may_say_from_where_clients_start():
    """Look-ahead: the second round's clients start from the weights it names."""
    seen = []

    class Ahead(Remember):
        def ahead(self, params, memory):
            seen.append(float(memory["count"]))
            return params + 1.0

    alone = weights(train(denoiser=Ahead()).model)
    assert not torch.equal(alone, weights(train().model))
    assert seen == [0, 1, 2, 3, 4, 5]
    chained = weights(train(denoiser=dpfedls.chain(dpfedls.Identity(), Ahead())).model)
    assert torch.equal(alone, chained)


def test_a_denoiser_may_answer_and_remember_in_other_precisions(tmp_path):
    class Other(Remember):
        def start(self, layout):
            return {"count": 0, "mean": torch.zeros(layout.dim, dtype=torch.bfloat16)}

        def __call__(self, release, memory):
            mean = memory["mean"].bfloat16()
            return release.value.double(), {"count": memory["count"] + 1, "mean": mean}

    plain = weights(train().model)
    assert torch.equal(weights(train(denoiser=lambda r: r.value.double().numpy()).model), plain)
    with pytest.raises(KeyboardInterrupt):
        train(denoiser=Other(), folder=tmp_path / "r", watch=[stop_after(3)])
    assert torch.equal(weights(train(denoiser=Other(), folder=tmp_path / "r").model), plain)
    kept = load_file(tmp_path / "r" / "checkpoint" / "state.safetensors")
    assert int(kept["memory.count"]) == 6


def test_a_denoiser_that_fails_does_so_before_a_folder_is_made(tmp_path):
    class Text(Remember):
        def start(self, layout):
            return {"count": "none"}

    class Grows(Remember):
        def start(self, layout):
            return {}

        def __call__(self, release, memory):
            return release.value, {"mean": release.value}

    for denoiser, why in (
        (Grows(), "remembers 'mean' after a release, but its start.. gives nothing"),
        (lambda release: 1 / 0, "fails on a release of zeros .ZeroDivisionError"),
        (lambda release: release.value[1:], "it must return a tensor of that shape"),
        (Text(), "a denoiser's memory is a dict of tensors, got"),
        (dpfedls.chain(Momentum(), lambda release: "no"), "it must return a tensor"),
    ):
        with pytest.raises(InputError, match=why):
            train(denoiser=denoiser, folder=tmp_path / "r")
        assert not (tmp_path / "r").exists()


OWN = """
import torch
from dpfedls import ClientData, Task
def make(num_clients, streams):
    rng = streams.generator("split")
    x = torch.from_numpy(rng.standard_normal((num_clients, 6, 4))).float()
    y = (x.sum(dim=-1) > 0).long()
    return Task(ClientData.from_pairs(zip(x, y)), torch.nn.Linear(4, 2), (x[0], y[0]),
                test_from="the first person, trained on")
def wrong(num_clients, streams):
    return 3
"""


def test_an_own_task_runs_resumes_with_trust_and_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "tasks.py").write_text(OWN)
    (tmp_path / "mine.toml").write_text(
        'task = "./tasks.py:make"\n[plan]\nsampler = { kind = "poisson", rate = 0.5 }\n'
        "num_clients = 20\nrounds = 3\nclip_norm = 0.5\nnoise_multiplier = 1.0\n"
        "[local]\nepochs = 1\n"
    )
    monkeypatch.chdir(tmp_path)

    def command(*words):
        monkeypatch.setattr("sys.argv", ["dpfedls", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    code, out, _ = command("run", "mine.toml", "--out", "r", "--json")
    assert code == 0
    assert json.loads(out)["task"] == f"{tmp_path}/tasks.py:make"
    assert command("resume", "r")[0] == 2
    assert command("resume", "r", "--trust", "--json")[0] == 0
    assert "the first person, trained on" in (tmp_path / "r" / "privacy.json").read_text()
    code, _, err = command("run", "mine.toml", "--set", "task=./tasks.py:wrong", "--out", "x")
    assert (code, err.count("\n")) == (2, 1)
    assert "must return dpfedls.Task" in err
    assert not (tmp_path / "x").exists()
    (tmp_path / "broken.py").write_text("1 / 0")
    for name, words in (
        ("./no.py:make", "is not there"),
        ("no_such.module:make", "cannot be imp"),
        ("broken:make", "fails when loaded (Zero"),
    ):
        code, _, err = command("run", "mine.toml", "--set", f"task={name}", "--out", "x")
        assert (code, words in err) == (2, True)


def test_a_metric_that_fails_is_told_before_anything_is_written(tmp_path):
    for metric in (lambda outputs, targets: "much", lambda outputs, targets: 1 / 0):
        with pytest.raises(InputError, match="it must give one number"):
            train(metrics={"mine": metric}, folder=tmp_path / "r")
        assert not (tmp_path / "r").exists()
    with pytest.raises(InputError, match="the name of the mean loss"):
        train(metrics={"loss": lambda outputs, targets: 1.0})
    for taken in ("epsilon", "round", "run"):  # it would stand in their columns
        with pytest.raises(InputError, match=f'called "{taken}", which logs and reports have'):
            train(metrics={taken: lambda outputs, targets: 1.0})
