"""``dpfedls audit``: what it answers, and that a broken claim is told by its exit code."""

from __future__ import annotations

import json

import pytest

from dpfedls import InputError
from dpfedls.auditing import noise
from dpfedls.auditing.recipe import audit
from dpfedls.commands import main as cli
from dpfedls.randomness import SystemStreams
from dpfedls.runs import recipes

SMALL = ("plan.num_clients=40", "plan.rounds=4", "plan.noise_multiplier=1.0")


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(noise, "DRAWS", 2**18)


def command(monkeypatch, capsys, *words):
    settings = [word for setting in SMALL for word in ("--set", setting)]
    given = ["dpfedls", "audit", "synthetic", *settings, "--canaries", "0", "--json", *words]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return ended.value.code, json.loads(out) if out else None, err


def test_the_answer_has_its_keys_and_states_its_power(monkeypatch, capsys):
    code, found, _ = command(monkeypatch, capsys)
    assert code == 0
    assert found["consistent"]
    assert 0.97 * found["mu_claimed"] < found["mu_lower"] <= found["mu_claimed"]
    assert found["epsilon_lower"] <= found["epsilon_claimed"]
    assert found["power"]["with_probability"] == 0.99
    assert 0 < found["power"]["deployed_scale_error_found"] < 0.03


def test_what_a_recipe_leaves_to_us_is_chosen_before_it_is_audited():
    """ε alone: rounds, cohort, noise and rates, as ``dpfedls run`` chooses them."""
    open_ = recipes.read("automatic", ["plan.num_clients=100", "calibrate.epsilon=8"])
    assert open_.server_rate == "auto"
    found = audit(open_, rounds=2, trials=60)
    assert found["consistent"], found["problems"]
    assert found["epsilon_claimed"] == pytest.approx(8, rel=1e-3)


def test_a_broken_claim_exits_1_and_names_the_property(monkeypatch, capsys):
    real = SystemStreams.noise
    monkeypatch.setattr(SystemStreams, "noise", lambda self, t: lambda *a: real(self, t)(*a) * 0.95)
    code, found, _ = command(monkeypatch, capsys)
    assert code == 1
    assert not found["consistent"]
    assert any("noise" in problem for problem in found["problems"])


def test_without_noise_there_is_nothing_to_audit():
    with pytest.raises(InputError, match="nothing"):
        audit(recipes.read("synthetic", ["plan.noise_multiplier=0"]))
