"""``dpfedls.train`` has what a built-in recipe has: folder, resume, statement, watchers."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trainings import TEST, stop_after, train, weights

import dpfedls
from dpfedls import InputError, Momentum
from dpfedls.privacy.population import Population
from dpfedls.runs.export import card
from dpfedls.runs.verify import verify
from dpfedls.runs.watch import describe
from federations import linear_clients, plan, start_model


def test_epsilon_alone_makes_a_plan_and_says_it():
    result = dpfedls.train(model=start_model(), clients=linear_clients(30), epsilon=3.0)
    assert 2.99 < result.epsilon <= 3.0
    assert result.plan.delta == pytest.approx(30**-1.1)
    assert result.recipe.plan == result.plan
    assert result.metrics == {}
    assert result.accuracy is None
    for wrong in ({}, {"epsilon": 1.0, "plan": plan()}, {"plan": plan(), "delta": 0.1}):
        with pytest.raises(InputError):
            dpfedls.train(model=start_model(), clients=linear_clients(), **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "depolyed"}, "mode = 'depolyed' must be 'simulation' or 'deployed'"),
        ({"schedule": "cosine"}, "schedule = 'cosine' must be 'constant' or 'root' or 'linear'"),
        ({"server_rate": "atuo"}, "server_rate = 'atuo' is no number"),
        ({"epsilon": "1", "plan": None}, "epsilon must be a number"),
        ({"epsilon": True, "plan": None}, "epsilon must be a number"),
    ],
)
def test_a_misspelt_word_is_refused_and_never_a_silent_default(wrong, message):
    with pytest.raises(InputError, match=message):
        train(**wrong)


def test_deployed_noise_needs_a_folder_and_is_never_the_same(tmp_path):
    with pytest.raises(InputError, match="give folder="):
        train(mode="deployed")
    one, two = (train(mode="deployed", folder=tmp_path / name) for name in "ab")
    assert not torch.equal(weights(one.model), weights(two.model))
    assert one.statement["mode"] == "deployed"
    assert one.summary()["seconds_per_round"] is None
    assert not any("seconds" in line for line in (tmp_path / "a" / "rounds.jsonl").open())
    assert verify(tmp_path / "a")["valid"]


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_who_is_malformed_is_named_in_a_simulation_and_counts_as_zero_when_deployed(
    tmp_path, mode, caplog
):
    """Stopping in round t by name would tell that this person was drawn then."""
    caplog.set_level(logging.DEBUG)
    bad = (torch.full((6, 4), torch.nan), torch.zeros(6).long())
    sets = [TensorDataset(*own) for own in (bad, *linear_clients(19))]
    clients = dpfedls.LazyClients(sets, like=(torch.zeros(1, 4), torch.zeros(1).long()))
    everybody = plan(rounds=3, sampler=dpfedls.PoissonSampling(rate=1.0))
    changes = {"clients": clients, "plan": everybody, "mode": mode, "folder": tmp_path / "r"}
    if mode == "simulation":
        with pytest.raises(InputError, match=r"clients\[0\] has 6 samples with NaN"):
            train(**changes)
    else:
        assert len(train(**changes, server_rate="auto", test=None).history) == 3
        assert "clients[" not in " ".join(caplog.messages)


class FailsInTraining(nn.Linear):
    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("mine")
        return super().forward(x)


@pytest.mark.parametrize("lazy", [False, True])
def test_what_trains_nobody_is_refused_before_anything_is_paid(tmp_path, lazy):
    """Deployed, whoever fails counts as zero; where all do, every round would be paid in vain."""
    clients = linear_clients()
    if lazy:
        clients = dpfedls.LazyClients([TensorDataset(*own) for own in clients])
    changes = {"clients": clients, "engine": "looped", "mode": "deployed"}
    for wrong, message in (
        ({"loss": nn.CrossEntropyLoss()}, "one loss per sample"),
        ({"model": FailsInTraining(4, 3)}, "RuntimeError: mine"),
    ):
        with pytest.raises(InputError, match=message):
            train(**changes, **wrong, folder=tmp_path / "r")
        assert not (tmp_path / "r").exists()


def test_without_a_folder_no_durable_ledger_is_claimed(tmp_path):
    claimed = [" ".join(train(folder=f).statement["enforced"]) for f in (None, tmp_path / "r")]
    assert "paid for in the ledger" not in claimed[0]
    assert "for as long as the process lives" in claimed[0]
    assert "paid for in the ledger" in claimed[1]


def test_runs_of_one_population_share_one_budget(tmp_path, caplog):
    """Wherever their folders are: one path is one account."""
    account = tmp_path / "accounts" / "p.sqlite"
    with pytest.raises(InputError, match="has no ledger there; give folder="):
        train(population=account, budget=1.0)
    once = plan(rounds=6).epsilon()
    first = train(folder=tmp_path / "runs" / "a", population=account, budget=1.2 * once)
    second = train(folder=tmp_path / "runs" / "sweep" / "b", population=account)
    assert first.exhausted is None
    assert second.exhausted is not None
    assert 0 < len(second.history) < 6
    assert "budget of the population exhausted" in caplog.text
    assert caplog.text.count("is a new account") == 1


def test_a_wrong_budget_leaves_no_folder_and_the_corrected_call_runs(tmp_path):
    changes = {"folder": tmp_path / "r", "population": tmp_path / "p.sqlite"}
    with pytest.raises(InputError, match="give budget where this is the first run"):
        train(**changes)
    assert list(tmp_path.iterdir()) == []
    assert len(train(**changes, budget=50.0).history) == 6
    # Fewer people, another δ: the message's way out can be taken.
    fewer = {
        "folder": tmp_path / "s",
        "clients": linear_clients(19),
        "plan": plan(num_clients=19, rounds=6, delta=None),
        "population": tmp_path / "p.sqlite",
    }
    with pytest.raises(InputError, match="leave budget out"):
        train(**fewer, budget=50.0)
    assert not (tmp_path / "s").exists()
    assert len(train(**fewer).history) == 6


@pytest.mark.parametrize("every", [3, 10])
def test_the_last_model_is_evaluated_when_the_budget_ends_the_run(tmp_path, every):
    budget = plan(rounds=4).epsilon()
    changes = {"folder": tmp_path / "r", "budget": budget, "evaluate_every": every}
    with pytest.raises(KeyboardInterrupt):
        train(**changes, watch=[stop_after(4)])
    shutil.rmtree(tmp_path / "r" / "checkpoint")  # all is run again, and none but the last is last
    result = train(**changes)
    x, y = TEST
    assert len(result.history) == 4
    assert result.accuracy == pytest.approx(float((result.model(x).argmax(1) == y).float().mean()))
    assert [record.round for record in result.history if record.metrics] == [3, 4][every == 10 :]
    assert f"Test accuracy: {100 * result.accuracy:.1f}" in card(tmp_path / "r")
    assert "20 people, 4 of 6 rounds." in card(tmp_path / "r")


def test_a_last_model_that_could_not_be_evaluated_is_said(tmp_path, caplog):
    """Another run of the population takes the round that was to follow."""
    account, event = tmp_path / "p.sqlite", plan(rounds=6).round_event

    def other(record):
        if record.round == 2:
            Population(account).spend(event, 0, "another run's")

    changes = {"population": account, "budget": plan(rounds=3).epsilon(), "evaluate_every": 10}
    result = train(folder=tmp_path / "r", watch=[other], **changes)
    assert (len(result.history), result.metrics) == (2, {})
    assert "the last model was not evaluated" in caplog.text
    assert verify(tmp_path / "r")["valid"]


@pytest.mark.parametrize(
    ("denoiser", "strength"),
    [
        (None, 0.0),
        (dpfedls.AdaptiveSmoothing(), None),
        (dpfedls.chain(dpfedls.LaplacianSmoothing(strength=2.0), Momentum()), 2.0),
    ],
)
def test_a_summary_says_the_strength_of_any_smoothing(denoiser, strength):
    assert train(denoiser=denoiser, plan=plan(rounds=1)).summary()["strength"] == strength


def test_numbers_of_numpy_are_numbers():
    given = plan(
        sampler=dpfedls.PoissonSampling(rate=np.float64(0.25)),
        num_clients=np.int64(32),
        rounds=np.int32(2),
        clip_norm=np.float32(0.5),
    )
    assert given == plan(
        sampler=dpfedls.PoissonSampling(rate=0.25), num_clients=32, rounds=2, clip_norm=0.5
    )
    assert type(given.sampler.rate) is float
    assert type(given.num_clients) is int
    assert dpfedls.LocalSGD(steps=np.int64(3), learning_rate=np.float64(0.1)).steps == 3
    again = train(seed=np.int64(5), server_rate=np.float64(0.5))
    assert again.recipe == train(seed=5, server_rate=0.5).recipe
    with pytest.raises(InputError, match=r"rounds = 2\.5"):
        plan(rounds=np.float64(2.5))


def test_regression_has_metrics_of_its_own_and_no_accuracy(tmp_path):
    x = torch.randn(200, 4)
    clients = [(x[i : i + 5], x[i : i + 5].sum(dim=1)) for i in range(0, 200, 10)]

    def absolute(outputs, targets):
        return (outputs.squeeze(-1) - targets).abs()  # one per sample

    def worst(outputs, targets):
        return absolute(outputs, targets).max()  # one for all

    result = train(
        model=nn.Linear(4, 1),
        clients=clients,
        loss=lambda outputs, targets: absolute(outputs, targets) ** 2,
        metrics={"mae": absolute, "worst": worst},
        test=(x.numpy(), x.sum(dim=1).numpy()),
        folder=tmp_path / "r",
    )
    outputs = result.model(x)
    assert result.metrics["mae"] == pytest.approx(float(absolute(outputs, x.sum(1)).mean()), 1e-5)
    assert result.metrics["worst"] == pytest.approx(float(worst(outputs, x.sum(1))), 1e-5)
    assert set(result.metrics) == {"mae", "worst", "loss"}
    page = (tmp_path / "r" / "report.html").read_text()
    assert "Test mae" in page
    assert "test accuracy" not in page.lower()
    assert "mae" in describe(result.history[-1])


def test_which_engine_trained_and_why_is_logged_and_kept(tmp_path, caplog):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else self.layer(-x)

    with caplog.at_level(logging.INFO, "dpfedls"):
        result = train(model=Branches(), folder=tmp_path / "r")
    assert result.engine.startswith("looped: ")
    assert "Branches" in result.engine
    assert "engine: looped" in caplog.text
    assert json.loads((tmp_path / "r" / "notes.json").read_text())["engine"] == result.engine
    assert train(engine="vmapped").engine.startswith("vmapped")
    assert np.isfinite(result.loss)
