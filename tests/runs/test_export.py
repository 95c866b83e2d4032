from __future__ import annotations

import hashlib

import pytest
import torch

import dpfedls
from dpfedls import InputError
from dpfedls.runs.compare import compare
from dpfedls.runs.curves import shown
from dpfedls.runs.export import export
from federations import linear_clients, local, plan, start_model


@pytest.fixture
def run(tmp_path):
    settings = {"plan": plan(rounds=2), "local": local(), "test": linear_clients(1, 50)[0]}
    folder = tmp_path / "run"
    return dpfedls.train(model=start_model(), clients=linear_clients(), folder=folder, **settings)


def test_the_model_goes_with_a_card_that_says_what_it_cost(run, tmp_path, caplog):
    files = export(run.folder, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "model.safetensors", "privacy.json",
    ]  # fmt: skip
    card = files[2].read_text("utf-8")
    assert f"ε = {run.epsilon:.4g}" in card
    assert "# A simulated model: nobody is protected" in card
    assert "they protect nobody here" in card
    assert "this model protects nobody" in caplog.text
    assert hashlib.sha256(files[0].read_bytes()).hexdigest() in card
    assert f"Test accuracy: {shown('accuracy', run.accuracy)}." in card
    loaded = dpfedls.load(tmp_path / "out", start_model())
    for mine, theirs in zip(loaded.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_cannot_be_relied_on_is_not_handed_on(run, tmp_path):
    with pytest.raises(InputError, match="already holds files"):
        export(run.folder, run.folder)
    sealed = (run.folder / "report.html").read_bytes()
    for write in (
        lambda: compare([run.folder], run.folder / "report.html"),
        lambda: export(run.folder, run.folder / "x"),
        lambda: dpfedls.train(start_model(), linear_clients(), epsilon=8, folder=run.folder / "x"),
    ):
        with pytest.raises(InputError, match="lies in the run folder"):
            write()
    assert not (run.folder / "x").exists()
    assert (run.folder / "report.html").read_bytes() == sealed
    log = run.folder / "rounds.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"accuracy":0.', b'"accuracy":1.'))
    with pytest.raises(InputError, match="failed verification"):
        export(run.folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
