from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from dpfedls import InputError
from dpfedls.auditing.attack import attack
from dpfedls.auditing.diagnostics import watchers
from dpfedls.auditing.kept import kept_problems
from dpfedls.auditing.membership import roc
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.compare import compare
from dpfedls.runs.verify import verify
from dpfedls.tasks.partition import iid
from dpfedls.tasks.task import Task


def test_the_area_is_the_chance_that_a_member_has_the_smaller_loss():
    members, others = np.array([0.1, 0.4, 0.3]), np.array([0.2, 0.5])
    pairs = [(m < o) + 0.5 * (m == o) for m in members for o in others]
    found = roc(members, others)
    assert found["auc"] == pytest.approx(np.mean(pairs))
    assert (found["false_positive_rate"][0], found["true_positive_rate"][-1]) == (0, 1)


def memorise(num_clients, streams):
    """Labels that follow from nothing: whoever fits them has learned people by heart."""
    rng = streams.torch_generator("split")
    x, y = torch.randn(200, 64, generator=rng), torch.randint(4, (200,), generator=rng)
    data = iid(x[:100], y[:100], num_clients, streams.generator("partition"))
    return Task(data, torch.nn.Linear(64, 4), (x[100:], y[100:]))


def test_overfitting_shows_and_privacy_hides_it(tmp_path, monkeypatch):
    """100 against 100 by chance: standard deviation 0.041, so 0.65 is a false alarm of 1e-4."""
    monkeypatch.setattr("dpfedls.tasks.synthetic.make", memorise)
    settings = [
        *("plan.num_clients=10", "plan.sampler.rate=1.0", "plan.rounds=20", "plan.delta=0.01"),
        *("local.epochs=10", "local.learning_rate=0.5", "denoiser.strength=0", "diagnose=true"),
    ]
    for name, noise in (("open", 0.0), ("private", 30.0)):
        recipe = [*settings, f"plan.noise_multiplier={noise}", "plan.clip_norm=5.0"]
        chosen = recipes.read("synthetic", recipe)
        runs.start(chosen, tmp_path / name, watchers(chosen, tmp_path / name))
    leaking, hidden = attack(tmp_path / "open"), attack(tmp_path / "private")
    assert leaking["members"] == leaking["non_members"] == 100
    assert leaking["auc"] > 0.8
    assert [at["round"] for at in leaking["by_round"]] == list(range(1, 21))
    assert leaking["by_round"][-1]["auc"] == pytest.approx(leaking["auc"])
    assert hidden["auc"] < 0.65
    both = [tmp_path / name for name in ("open", "private")]
    compare(both, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    for name, found in (("open", leaking), ("private", hidden)):
        assert f"{name}: AUC {found['auc']:.3f}" in page
    assert "0.5 ± 0.041" in page  # as above
    assert kept_problems(both[1]) == []
    assert verify(both[1])["valid"]


def test_nothing_is_kept_of_an_attack_on_a_deployed_run(tmp_path):
    settings = ["plan.num_clients=60", "plan.rounds=1", "mode=deployed"]
    runs.start(recipes.read("synthetic", settings), tmp_path / "r")
    attack(tmp_path / "r")
    assert not (tmp_path / "r" / "attack.json").exists()
    (tmp_path / "r" / "attack.json").write_text("planted")
    assert kept_problems(tmp_path / "r") == ["attack.json should not be in the run folder"]
    compare([tmp_path / "r"], tmp_path / "page.html")
    assert "AUC" not in (tmp_path / "page.html").read_text("utf-8")


def test_a_run_without_a_model_and_a_missing_package(tmp_path, monkeypatch):
    (tmp_path / "recipe.toml").write_text(recipes.encode(recipes.read("synthetic")))
    with pytest.raises(InputError, match="the run is not finished"):
        attack(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(InputError, match=r"dpfedls\[attack\]"):
        roc(np.zeros(2), np.ones(2))
