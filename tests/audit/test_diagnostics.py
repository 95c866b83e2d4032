from __future__ import annotations

import json
import sys

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedls import InputError
from dpfedls.auditing.attack import attack
from dpfedls.auditing.diagnostics import read_diagnostics, watchers
from dpfedls.auditing.membership import sides
from dpfedls.commands import main as cli
from dpfedls.metrics import evaluate
from dpfedls.people.losses import cross_entropy
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import FILE
from dpfedls.runs.verify import verify
from dpfedls.tasks.task import Task, make_task

SMALL = ["plan.num_clients=60", "plan.rounds=5", "plan.noise_multiplier=1.0"]


def small(*settings):
    return recipes.read("synthetic", [*SMALL, "diagnose=true", *settings])


def start(recipe, folder, *watch):
    """As the command line does: diagnostics among those who watch."""
    return runs.start(recipe, folder, [*watchers(recipe, folder), *watch])


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "diagnosed"
    start(small("evaluate_every=2"), folder)
    return folder


def test_a_line_for_every_judged_round(diagnosed):
    assert (diagnosed / "diagnostics.jsonl").stat().st_mode & 0o077 == 0  # for its owner alone
    lines = [json.loads(line) for line in (diagnosed / "diagnostics.jsonl").open()]
    assert [line["round"] for line in lines] == [2, 4, 5]
    keys = {"round", "training_loss", "training_accuracy", "validation_loss"}
    assert all(set(line) == keys | {"validation_accuracy", "attack_auc"} for line in lines)
    assert lines[-1]["training_loss"] < lines[0]["training_loss"]  # it learns
    assert verify(diagnosed)["valid"], verify(diagnosed)["problems"]


def test_the_last_line_is_what_the_final_model_gives(diagnosed):
    """The model is read back from its file, and the samples are drawn again."""
    last = read_diagnostics(diagnosed)[-1]
    task = make_task("synthetic-logistic", 60, SeededStreams(0))
    weights = load_file(diagnosed / "model.safetensors")
    for name, parameter in task.model.named_parameters():
        parameter.data.copy_(parameter.data.new_tensor(weights[name]))
    members, _ = sides(task, SeededStreams(0))
    scores = evaluate(task.model, members, cross_entropy, task.metrics)
    held = evaluate(task.model, task.validation, cross_entropy, task.metrics)
    found = {"accuracy": last.training_accuracy, "loss": last.training_loss}
    assert found == pytest.approx(scores, rel=1e-6)
    found = {"accuracy": last.validation_accuracy, "loss": last.validation_loss}
    assert found == pytest.approx(held, rel=1e-6)
    attacked = attack(diagnosed)
    assert attacked["by_round"][-1] == {"round": 5, "auc": pytest.approx(attacked["auc"])}
    assert [at["round"] for at in attacked["by_round"]] == [2, 4, 5]


def test_members_are_trained_on_and_the_others_are_not():
    task = make_task("synthetic-logistic", 60, SeededStreams(0))
    (members, _), (others, _) = sides(task, SeededStreams(0))
    assert len(members) == len(others) == 400
    trained = {row.numpy().tobytes() for row in task.data.features}
    assert all(row.numpy().tobytes() in trained for row in members)
    assert not any(row.numpy().tobytes() in trained for row in others)
    fewer, _ = sides(task, SeededStreams(0), most=50)
    assert np.array_equal(fewer[0], members[:50])


def test_looking_changes_neither_the_model_nor_what_is_public(diagnosed, tmp_path):
    runs.start(small("diagnose=false", "evaluate_every=2"), tmp_path / "plain")
    assert not (tmp_path / "plain" / "diagnostics.jsonl").exists()
    assert "by_round" not in attack(tmp_path / "plain")
    one, other = (load_file(f / "model.safetensors") for f in (diagnosed, tmp_path / "plain"))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    logs = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (folder / "rounds.jsonl").open()
        ]
        for folder in (diagnosed, tmp_path / "plain")
    ]
    assert logs[0] == logs[1]


def test_lines_beyond_the_checkpoint_are_written_again(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        start(small(), folder, lambda log: 1 / (log.round - 3))
    state = (folder / FILE).read_bytes()
    runs.resume(folder, watchers(small(), folder))
    whole = (folder / "diagnostics.jsonl").read_bytes()
    (folder / FILE).write_bytes(state)  # a crash after round 3,
    (folder / "diagnostics.jsonl").write_bytes(whole[:-40])  # in the middle of a line
    runs.resume(folder, watchers(small(), folder))
    assert (folder / "diagnostics.jsonl").read_bytes() == whole


def test_without_validation_samples_there_is_null(tmp_path, monkeypatch):
    whole = make_task("synthetic-logistic", 60, SeededStreams(0))

    def make(num_clients, streams):
        return Task(whole.data, whole.model, whole.test)

    monkeypatch.setattr("dpfedls.tasks.synthetic.make", make)
    start(small("plan.rounds=1"), tmp_path / "run")
    (line,) = read_diagnostics(tmp_path / "run")
    assert (line.validation_loss, line.validation_accuracy) == (None, None)
    assert 0 < line.training_accuracy < 1


def test_a_deployment_keeps_no_diagnostics():
    with pytest.raises(InputError, match="must be noisy"):
        small("mode=deployed")
    with pytest.raises(InputError, match="must be noisy"):
        msgspec.structs.replace(small(), mode="deployed")


def test_a_missing_package_is_told_before_a_file_is_made(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(InputError, match=r"dpfedls\[attack\]"):
        start(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_shows_the_attack_by_round(diagnosed, monkeypatch, capsys):
    def dpfedls(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpfedls", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    found = json.loads(dpfedls("attack", diagnosed, "--json"))
    assert {"auc", "members", "non_members", "by_round"} <= set(found)
    text = dpfedls("attack", diagnosed).splitlines()
    assert text[0].startswith(f"AUC {found['auc']:.4f} over 400 members")
    assert text[-1] == f"round    5  AUC {found['auc']:.4f}"
