"""A run that was stopped goes on: the same call, and what may and may not change."""

from __future__ import annotations

import shutil
import sys

import msgspec
import pytest
import torch
from torch import nn
from trainings import Remember, Scale, other_loss, paid_and_kept, stop_after, train, weights

import dpfedls
from dpfedls import InputError, Momentum
from dpfedls.auditing.kept import kept_problems
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.population import Population
from dpfedls.runs.folder import read_recipe
from dpfedls.runs.recipes import differing
from dpfedls.runs.verify import verify
from federations import linear_clients, local, plan, start_model


@pytest.mark.parametrize("denoiser", [None, Remember(), dpfedls.chain(Remember(), Momentum())])
def test_the_same_call_goes_on_after_ctrl_c_to_the_same_model(tmp_path, denoiser):
    whole = train(denoiser=denoiser, folder=tmp_path / "whole")
    for last in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            train(denoiser=denoiser, folder=tmp_path / "cut", watch=[stop_after(last)])
    result = train(denoiser=denoiser, folder=tmp_path / "cut")
    assert torch.equal(weights(result.model), weights(whole.model))
    assert [record.round for record in result.history] == [1, 2, 3, 4, 5, 6]
    assert verify(tmp_path / "cut")["valid"], verify(tmp_path / "cut")["problems"]
    loaded = dpfedls.load(tmp_path / "cut", start_model())
    assert torch.equal(weights(loaded), weights(whole.model))
    again = train(denoiser=denoiser, folder=tmp_path / "cut")  # finished: nothing is trained
    assert again.epsilon == whole.epsilon
    assert torch.equal(weights(again.model), weights(whole.model))


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_round_whose_evaluation_is_stopped_is_kept_and_evaluated_later(tmp_path, mode, error):
    calls = iter(range(100))

    def stops(outputs, targets):
        if next(calls) == 3:  # the first call is the trial before anything is paid
            raise error
        return torch.ones(len(targets))

    changes = {"folder": tmp_path / "r", "mode": mode}
    with pytest.raises((error, InputError)):
        train(metrics={"mine": stops}, **changes)
    assert paid_and_kept(tmp_path / "r") == (3, 3)
    assert not [p for p in verify(tmp_path / "r")["problems"] if "privacy.json" not in p]
    result = train(metrics={"mine": lambda outputs, targets: torch.ones(len(targets))}, **changes)
    assert paid_and_kept(tmp_path / "r") == (6, 6)
    assert [(r.round, r.metrics["mine"]) for r in result.history] == [(t, 1.0) for t in range(1, 7)]
    assert verify(tmp_path / "r")["valid"], verify(tmp_path / "r")["problems"]


def test_a_kill_while_a_deployed_round_is_evaluated_costs_nothing(tmp_path):
    """What lies in the folder at that moment is what a kill would leave."""
    calls = iter(range(100))

    def copies(outputs, targets):
        if (call := next(calls)) in (1, 4):
            shutil.copytree(tmp_path / "r", tmp_path / f"killed-{call}")
        return torch.ones(len(targets))

    train(metrics={"mine": copies}, folder=tmp_path / "r", mode="deployed")
    for round_ in (1, 4):
        folder = tmp_path / f"killed-{round_}"
        assert paid_and_kept(folder) == (round_, round_)
        result = train(metrics={"mine": copies}, folder=folder, mode="deployed")
        assert (len(result.history), result.exhausted) == (6, None)
        assert paid_and_kept(folder) == (6, 6)
        assert all(record.metrics for record in result.history)
        assert verify(folder)["valid"], verify(folder)["problems"]


def test_a_second_call_on_a_finished_folder_writes_nothing(tmp_path, caplog):
    """Whoever calls it made no round: neither their code nor their commit belongs in the notes."""
    short = {"budget": plan(rounds=3).epsilon()}
    for name, changes in (("a", {}), ("b", short)):
        folder = tmp_path / name
        first = train(folder=folder, denoiser=Scale(0.3), **changes)
        before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.rglob("*")}
        caplog.clear()
        again = train(folder=folder, denoiser=Scale(0.9), loss=other_loss, **changes)
        assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.rglob("*")} == before
        assert torch.equal(weights(again.model), weights(first.model))
        assert again.metrics == first.metrics
        assert (again.exhausted is None) == (first.exhausted is None) == (name == "a")
        assert "with other code of your own than is given now (loss, denoiser)" in caplog.text


def test_a_seal_that_was_cut_short_is_made(tmp_path):
    train(folder=tmp_path / "r")
    for name in ("privacy.json", "report.html", "notes.json"):
        (tmp_path / "r" / name).unlink()
        train(folder=tmp_path / "r")
        assert verify(tmp_path / "r")["valid"], verify(tmp_path / "r")["problems"]


def test_another_model_promise_or_denoiser_does_not_go_on_with_a_run(tmp_path):
    train(folder=tmp_path / "r")
    with pytest.raises(InputError, match="another recipe"):
        train(folder=tmp_path / "r", plan=plan(rounds=7))
    with pytest.raises(InputError, match="another recipe"):
        train(folder=tmp_path / "r", denoiser=Remember())
    other = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    with pytest.raises(
        InputError, match="it has 15 weights and remembers nothing, and these have 43"
    ):
        train(folder=tmp_path / "r", model=other)
    with pytest.raises(InputError, match="holds another model"):
        dpfedls.load(tmp_path / "r", other)


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_a_run_goes_on_with_another_device_engine_block_or_evaluation(tmp_path, mode):
    """None is part of its promise: a machine that dies must not strand what was paid for."""
    folder = tmp_path / "r"
    with pytest.raises(KeyboardInterrupt):
        train(folder=folder, mode=mode, watch=[stop_after(2)])
    written = (folder / "recipe.toml").read_bytes()
    how = {"device": "cpu:0", "engine": "looped", "block_size": 1, "evaluate_every": 2}
    result = train(folder=folder, mode=mode, **how)
    assert (folder / "recipe.toml").read_bytes() == written
    assert [bool(record.metrics) for record in result.history] == [True, True, *[False, True] * 2]
    assert result.engine.startswith("looped")
    assert kept_problems(folder) == []
    if mode == "simulation":  # up to rounding
        torch.testing.assert_close(weights(result.model), weights(train().model))


def test_a_deployed_run_goes_on_whatever_its_seed(tmp_path):
    """It draws nothing there, unless of a task by name: who has which samples."""
    for mode in ("simulation", "deployed"):
        with pytest.raises(KeyboardInterrupt):
            train(folder=tmp_path / mode, mode=mode, watch=[stop_after(2)])
    with pytest.raises(InputError, match=r"another recipe, which differs in seed; "):
        train(folder=tmp_path / "simulation", seed=9)
    result = train(folder=tmp_path / "deployed", mode="deployed", seed=9)
    assert [record.round for record in result.history] == [1, 2, 3, 4, 5, 6]
    assert verify(tmp_path / "deployed")["valid"]
    assert kept_problems(tmp_path / "deployed") == []
    found = msgspec.structs.replace(result.recipe, task="synthetic-logistic")
    assert differing(found, msgspec.structs.replace(found, seed=8)) == ["seed"]


def test_what_was_chosen_for_epsilon_stays_chosen_when_a_run_goes_on(tmp_path, monkeypatch):
    """Another version would choose otherwise, and say it in other words: the run still goes on."""
    folder = tmp_path / "r"
    given = {"model": start_model(), "clients": linear_clients(30), "epsilon": 3.0}
    given |= {"folder": folder, "mode": "deployed"}
    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**given, watch=[stop_after(1)])
    found = read_recipe(folder)

    def plan_for(num_clients, epsilon, delta=None):
        other = plan(num_clients=num_clients, clip_norm=dpfedls.AdaptiveClipping())
        return other, {"plan.rounds": "better"}

    module = sys.modules["dpfedls.runs.train"]
    monkeypatch.setattr(module, "plan_for", plan_for)
    monkeypatch.setattr(module, "WHY", {"schedule": "in better words"})
    monkeypatch.setattr(module, "_BY_EPSILON", module._BY_EPSILON._replace(schedule="linear"))
    for changes, keys in (
        ({"epsilon": 2.9}, "plan"),
        ({"delta": 0.01}, "plan"),
        ({"clients": linear_clients(29)}, "plan"),
        ({"local": local()}, "local"),
        ({"schedule": "constant", "averaging": 0.5}, "schedule, averaging"),
    ):
        with pytest.raises(InputError, match=rf"another recipe, which differs in {keys}\b.*toml"):
            dpfedls.train(**given | changes)
    again = dpfedls.train(**given, watch=[(seen := []).append])
    assert seen[0].round == 2
    assert again.recipe == found
    taken = {key: getattr(found, key) for key in ("plan", "local", "denoiser", "schedule")}
    del given["epsilon"]
    last = dpfedls.train(**given, **taken, server_rate=found.server_rate)  # as the message says
    assert last.recipe == found


def test_a_run_goes_on_only_with_the_account_that_it_paid_into(tmp_path):
    """Gone, empty, of an earlier day, or opened anew by another run."""
    account = tmp_path / "p.sqlite"
    changes = {"folder": tmp_path / "r", "population": account, "budget": 50.0, "mode": "deployed"}
    days = []
    for last in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            train(**changes, watch=[stop_after(last)])
        days.append(account.read_bytes())
    account.unlink()
    for _ in range(2):
        with pytest.raises(InputError, match=r"missing or empty.*restore the file from a backup"):
            train(**changes)
        account.touch()
    account.write_bytes(days[0])
    with pytest.raises(InputError, match=r"does not hold round 2, .*spend the same privacy twice"):
        train(**changes)
    account.unlink()
    Population(account, 50.0, 1e-2)
    with pytest.raises(InputError, match="does not hold round 1"):
        train(**changes)
    assert not read_ledger(account).entries
    account.write_bytes(days[1])
    assert len(train(**changes).history) == 6
    assert verify(tmp_path / "r")["valid"], verify(tmp_path / "r")["problems"]


def test_a_finished_run_says_that_nothing_is_trained(tmp_path, caplog):
    settings = {"plan": plan(rounds=2), "local": local(), "folder": tmp_path / "run"}
    first = dpfedls.train(start_model(), linear_clients(), **settings)
    assert "nothing is trained" not in caplog.text
    again = dpfedls.train(start_model(), linear_clients(), **settings)
    assert "holds a finished run: its result is read, nothing is trained" in caplog.text
    assert again.epsilon == first.epsilon
