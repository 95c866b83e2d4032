"""A run whose model is not finite has ended, and says what it spent."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from trainings import paid_and_kept, stop_after, train

import dpfedls
from dpfedls import InputError
from dpfedls.auditing.kept import kept_problems
from dpfedls.privacy.wording import text
from dpfedls.runs.export import export
from dpfedls.runs.seal import seal
from dpfedls.runs.verify import read_statement, verify
from federations import plan, start_model


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_a_diverged_run_has_ended_and_pays_no_more(tmp_path, mode):
    def overflow(release):
        return release.value * (torch.inf if release.round == 1 else 1)

    for _ in range(3):
        with pytest.raises(InputError, match=r"round 2 is not finite: .* the run has ended"):
            train(denoiser=overflow, folder=tmp_path / "r", mode=mode)
        assert paid_and_kept(tmp_path / "r") == (2, 2)
    found = verify(tmp_path / "r")
    assert (found["valid"], found["problems"]) == (True, [])
    assert found["checks"][-1]["check"] == "no model was handed out"
    assert kept_problems(tmp_path / "r") == []


def test_whoever_took_part_in_a_diverged_run_can_read_what_was_spent(tmp_path):
    def overflow(release):
        return release.value * (torch.inf if release.round == 1 else 1)

    folder = tmp_path / "r"
    with pytest.raises(InputError, match=r"r/privacy\.json says what was spent"):
        train(denoiser=overflow, folder=folder)
    stated = read_statement(folder)
    assert stated["epsilon"] == pytest.approx(plan(rounds=2).epsilon())
    assert stated["mechanism"]["rounds_paid"] == 2
    assert (stated["ended"]["round"], stated["ended"]["model"]) == (2, None)
    assert "training diverged" in (folder / "report.html").read_text("utf-8")
    for hand_out in (dpfedls.load, lambda run, _: export(run, tmp_path / "out")):
        with pytest.raises(InputError, match=r"has no model: .* training diverged \(round 2\)"):
            hand_out(folder, start_model())
    assert "Ended at round 2 of 6: the model of this round is not finite" in text(stated)

    train(folder=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    values = copy.deepcopy(stated)
    del values["files"]
    seal(folder, values)
    assert verify(folder)["problems"] == [
        "model.safetensors is there, but the run diverged and has no model"
    ]
    (folder / "model.safetensors").unlink()

    # Another end than the checkpoint's, or none, is no statement of this run.
    for change in (lambda s: s.pop("ended"), lambda s: s["ended"].update(round=1)):
        values = copy.deepcopy(stated)
        del values["files"]
        change(values)
        seal(folder, values)
        assert "privacy.json says ended" in verify(folder)["problems"][0]
    # Nor may a run that did not diverge say that it did.
    values = read_statement(tmp_path / "other")
    del values["files"]
    seal(tmp_path / "other", values | {"ended": stated["ended"]})
    assert "which no statement has" in verify(tmp_path / "other")["problems"][0]


def test_a_diverged_run_that_was_killed_before_its_seal_is_sealed_by_the_next_call(tmp_path):
    def overflow(release):
        return release.value * torch.inf

    with pytest.raises(KeyboardInterrupt):
        train(denoiser=overflow, folder=tmp_path / "r", watch=[stop_after(1)])
    assert not (tmp_path / "r" / "privacy.json").is_file()
    with pytest.raises(InputError, match="training diverged"):
        train(denoiser=overflow, folder=tmp_path / "r")
    assert verify(tmp_path / "r")["valid"]
    assert paid_and_kept(tmp_path / "r") == (1, 1)
