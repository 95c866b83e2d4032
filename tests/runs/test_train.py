"""``dpfedls.train`` has what a built-in recipe has: folder, resume, statement, watchers."""

from __future__ import annotations

import csv
import json
import logging
import shutil
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.utils.data import TensorDataset

import dpfedls
from dpfedls import InputError, Momentum
from dpfedls.auditing.kept import kept_problems
from dpfedls.commands import main as cli
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.population import Population
from dpfedls.runs.checkpoint import Checkpoint
from dpfedls.runs.export import card
from dpfedls.runs.folder import read_recipe
from dpfedls.runs.loggers import named_logger
from dpfedls.runs.verify import verify
from dpfedls.runs.watch import Pace, describe
from dpfedls.tasks import own
from federations import linear_clients, local, plan, start_model

TEST = linear_clients(1, 100)[0]


def train(**changes):
    values = {"model": start_model(), "clients": linear_clients(), "plan": plan(rounds=6)}
    return dpfedls.train(**(values | {"local": local(), "test": TEST} | changes))


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def stop_after(last):
    def watch(record):
        if record.round == last:
            raise KeyboardInterrupt

    return watch


class Remember:
    """A denoiser with memory: the mean of all releases so far, and how many they were."""

    def start(self, layout):
        return {"mean": torch.zeros(layout.dim), "count": torch.zeros(1)}

    def __call__(self, release, memory):
        count = memory["count"] + 1
        mean = memory["mean"] + (release.value - memory["mean"]) / count
        return mean, {"mean": mean, "count": count}


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


def paid_and_kept(folder):
    return len(read_ledger(folder / "ledger.sqlite").entries), Checkpoint.load(folder).round


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


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_a_diverged_run_has_ended_and_pays_no_more(tmp_path, mode):
    def overflow(release):
        return release.value * (torch.inf if release.round == 1 else 1)

    for _ in range(3):
        with pytest.raises(InputError, match=r"round 2 is not finite: .* the run has ended"):
            train(denoiser=overflow, folder=tmp_path / "r", mode=mode)
        assert paid_and_kept(tmp_path / "r") == (2, 2)
    assert not [p for p in verify(tmp_path / "r")["problems"] if "privacy.json" not in p]


class Scale:
    """A denoiser with a setting."""

    def __init__(self, by):
        self.by = by

    def __call__(self, release):
        return self.by * release.value


def one_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def other_loss(outputs, targets):
    return 2 * one_loss(outputs, targets)


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


def test_a_run_that_goes_on_with_other_code_names_both(tmp_path, caplog):
    """In one line and in the notes; a mended loss must not cost the whole run's privacy again."""
    by = {own.settings_digest(Scale(value)): str(value) for value in (0.3, 0.9)}
    for last, loss, value, expected in (
        (1, one_loss, 0.3, (False, ["n:one_loss", "0.3"])),
        (2, one_loss, 0.3, (False, ["n:one_loss", "0.3"])),
        (3, one_loss, 0.9, (True, ["0.3", "n:one_loss", "0.9"])),
        (4, other_loss, 0.9, (True, ["0.3", "n:one_loss", "other_loss", "0.9"])),
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
        names = [by.get(code.get("settings_sha256"), code["name"][-10:]) for code in notes]
        assert ("with other code of your own" in caplog.text, names) == expected
        caplog.clear()


class Telling:
    """A loss that keeps what it saw of private samples, and a secret, as people's own do."""

    def __init__(self, seen):
        self.api_key, self.counts, self.last, self.seen = "sk-secret", [71.25, 66.5], 0.0, seen

    def __call__(self, outputs, targets):
        losses = one_loss(outputs, targets)
        self.last = losses.mean().item()
        self.seen.append(repr(self.last))
        return losses


class TellingModel(nn.Linear):
    """A model that does the same."""

    def forward(self, features):
        self.api_key, self.last = "sk-secret", float(features[0, 0])
        SEEN.append(repr(self.last))
        return super().forward(features)


class SecretScale(Scale):
    """A denoiser with a secret."""

    def __init__(self):
        super().__init__(0.3)
        self.api_key = "sk-secret"


SEEN: list[str] = []


def test_nothing_that_own_code_holds_is_written(tmp_path):
    """Neither in clear nor as a digest that could be guessed; nor once it has trained already."""
    SEEN.clear()
    loss, model, folder = Telling(SEEN), TellingModel(4, 3), tmp_path / "r"
    given = {"model": model, "loss": loss, "denoiser": SecretScale(), "test": None}
    given |= {"metrics": {"mae": Telling([])}, "mode": "deployed", "engine": "looped"}
    with pytest.raises(KeyboardInterrupt):
        train(folder=folder, watch=[stop_after(2)], **given)
    path = folder / "notes.json"
    before = json.loads(path.read_text())
    before["own_code"][0]["settings"] = {"api_key": "'sk-secret'"}  # as earlier versions did
    path.write_text(json.dumps(before))
    train(folder=folder, **given)
    private = {"sk-secret", "71.25", *(value for value in SEEN if len(value) > 8)}
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
    assert "test_train:Remember" in (tmp_path / "r" / "recipe.toml").read_text()
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


def test_what_was_chosen_for_epsilon_stays_chosen_when_a_run_goes_on(tmp_path, monkeypatch):
    """Another version would choose otherwise, and say it in other words: the run still goes on."""
    folder = tmp_path / "r"
    given = {"model": start_model(), "clients": linear_clients(30), "epsilon": 3.0}
    given |= {"folder": folder, "mode": "deployed"}
    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**given, watch=[stop_after(1)])
    found = read_recipe(folder)

    def plan_for(num_clients, epsilon, delta=None):
        return plan(num_clients=num_clients), {"plan.rounds": "better"}

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
        ({"mode": "depolyed"}, "mode = 'depolyed' is not valid: known: simulation, deployed"),
        ({"schedule": "cosine"}, "schedule = 'cosine' is not valid: known: constant, root, linear"),
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
    clients = dpfedls.LazyClients([TensorDataset(*own) for own in (bad, *linear_clients(19))])
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


def test_loggers_and_progress_see_every_round(tmp_path, capsys):
    seen = []
    logger = dpfedls.CsvLogger(tmp_path / "log.csv")
    train(watch=[logger, seen.append], progress=True)
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert (
        [int(row["round"]) for row in rows] == [record.round for record in seen] == [*range(1, 7)]
    )
    assert float(rows[-1]["accuracy"]) == pytest.approx(seen[-1].accuracy)
    assert "round 6/6" in capsys.readouterr().err


def test_a_csv_file_has_all_metrics_and_the_rounds_before_a_crash(tmp_path):
    def logged():
        return list(csv.DictReader((tmp_path / "log.csv").open()))

    given = {"folder": tmp_path / "r", "evaluate_every": 3}
    with pytest.raises(KeyboardInterrupt):
        train(**given, watch=[dpfedls.CsvLogger(tmp_path / "log.csv"), stop_after(4)])
    assert [row["round"] for row in logged()] == ["1", "2", "3", "4"]
    result = train(**given, watch=[dpfedls.CsvLogger(tmp_path / "log.csv")])
    assert [row["round"] for row in logged()] == ["1", "2", "3", "4", "5", "6"]
    assert [bool(row["accuracy"]) for row in logged()] == [False, False, True] * 2
    assert float(logged()[-1]["loss"]) == pytest.approx(result.loss)


def test_loggers_write_beside_the_folder_wherever_that_is(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(watch=[named_logger("csv", Path())], folder=".")
    assert len((tmp_path / "here.csv").read_text().splitlines()) == 7
    assert verify(Path())["valid"]
    dpfedls.CsvLogger("deep/er/x.csv")
    assert Path("deep/er").is_dir()


def test_deployed_loggers_are_told_no_time(tmp_path, monkeypatch):
    """Stand-ins for both packages, which are not installed here; the clock is theirs if asked."""
    stamps = {}

    class Writer:
        def __init__(self, folder): ...
        def close(self): ...
        def add_scalar(self, name, value, step, walltime):
            stamps["tensorboard", step] = walltime

        def log_metric(self, run, name, value, timestamp, step):
            stamps["mlflow", step] = timestamp

    board, flow = ModuleType("board"), ModuleType("flow")
    vars(board)["SummaryWriter"] = Writer
    vars(flow).update(MlflowClient=lambda: Writer(""), active_run=lambda: None)
    vars(flow)["start_run"] = lambda: SimpleNamespace(info=SimpleNamespace(run_id="x"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "mlflow", flow)
    for mode, stamp in (("simulation", lambda t: None), ("deployed", lambda t: t)):
        watch = [dpfedls.TensorBoardLogger(tmp_path / "b"), dpfedls.MlflowLogger()]
        train(mode=mode, folder=tmp_path / mode, watch=watch)
        for name in ("tensorboard", "mlflow"):
            assert [stamps[name, t] for t in range(1, 7)] == [stamp(t) for t in range(1, 7)]


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


@pytest.mark.parametrize("logger", [dpfedls.TensorBoardLogger, dpfedls.MlflowLogger])
def test_a_logger_whose_package_is_missing_says_what_to_install(logger, tmp_path, monkeypatch):
    for name in ("tensorboard", "torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'dpfedls\["):
        logger(tmp_path) if logger is dpfedls.TensorBoardLogger else logger()


def test_a_watcher_that_cannot_close_leaves_a_finished_run(tmp_path, caplog):
    class Full:
        def __call__(self, record): ...

        def close(self):
            raise OSError("No space left on device")

    result = train(folder=tmp_path / "r", watch=[Full()])
    assert "Full failed to close (OSError: No space left" in caplog.text
    assert verify(tmp_path / "r")["valid"]
    again = train(folder=tmp_path / "r", watch=[Full()])  # nobody holds its ledger
    assert again.epsilon == result.epsilon


def test_wrong_input_leaves_no_live_bar(monkeypatch):
    """A notebook keeps the last traceback, and with it whatever was shown when it was made."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    before = set(threading.enumerate())
    with pytest.raises(InputError) as kept:
        train(model=nn.Linear(7, 3), progress=True)
    assert set(threading.enumerate()) <= before, kept


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_progress_of_a_deployed_run_tells_no_time(tmp_path, capsys, mode):
    train(folder=tmp_path / "r", mode=mode, progress=True)
    said = capsys.readouterr().err
    assert "round 6/6" in said
    assert ("s left" in said) == (mode == "simulation")


def test_time_left_is_not_told_from_the_first_step(monkeypatch):
    now = iter([0.0, 100.0, 101.0, 103.0])
    monkeypatch.setattr("dpfedls.runs.watch.time.perf_counter", lambda: next(now))
    next(now)  # the start
    pace = Pace(10)
    assert pace.left(1) == ""  # it took 100 s, to compile
    assert pace.left(2) == "8 s left"
    assert pace.left(4) == "6 s left"


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


def test_a_finished_run_says_that_nothing_is_trained(tmp_path, caplog):
    settings = {"plan": plan(rounds=2), "local": local(), "folder": tmp_path / "run"}
    first = dpfedls.train(start_model(), linear_clients(), **settings)
    assert "nothing is trained" not in caplog.text
    again = dpfedls.train(start_model(), linear_clients(), **settings)
    assert "holds a finished run: its result is read, nothing is trained" in caplog.text
    assert again.epsilon == first.epsilon
