from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

import dpfedls
from dpfedls import ClientData, FixedSizeSampling, InputError, LaplacianSmoothing, PoissonSampling
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.server import Server
from federations import federate, linear_clients, local, model_and_data, plan, start_model


def train(**changes):
    values = {
        "model": start_model(),
        "clients": linear_clients(),
        "plan": plan(),
        "local": local(),
        "test": linear_clients(1, 200)[0],
    }
    return dpfedls.train(**(values | changes))


def weights(result):
    return Layout.of(result.model).read(result.model)


def with_update(built, update):
    return dataclasses.replace(built, engine=dataclasses.replace(built.engine, update=update))


def simulation(promised=None, **changes):
    promised = promised or plan()
    model = start_model()
    ledger = MemoryLedger(promised)
    server = Server(promised, LaplacianSmoothing(), Layout.of(model), ledger)
    data = changes.pop("data", ClientData.from_pairs(linear_clients()))
    built = federate(model, data, server, local(), SeededStreams(0), **changes)
    return built, server.start(server.layout.read(model))


@pytest.mark.parametrize("sampler", [PoissonSampling(rate=0.4), FixedSizeSampling(cohort=8)])
def test_training_learns_and_accounts(sampler):
    promised = plan(sampler=sampler, rounds=15, noise_multiplier=0.1, clip_norm=2.0)
    result = train(plan=promised)
    assert result.accuracy > 0.8
    assert result.accuracy > result.history[0].accuracy
    assert result.loss < result.history[0].loss
    assert result.epsilon == pytest.approx(promised.epsilon(), rel=1e-9)
    spent = [record.epsilon for record in result.history]
    assert spent == sorted(spent)
    assert result.privacy_statement()["mode"] == "simulation"


def test_same_seed_same_bits_other_seed_other_model():
    assert torch.equal(weights(train(seed=3)), weights(train(seed=3)))
    assert not torch.equal(weights(train(seed=3)), weights(train(seed=4)))


@pytest.mark.parametrize("kind", ["linear", "lstm"])
def test_the_block_size_changes_nothing_but_memory(kind):
    model, data = model_and_data(kind)
    promised = plan(num_clients=data.num_clients, sampler=PoissonSampling(rate=0.9))
    results = [
        weights(train(model=model, clients=data, plan=promised, test=None, block_size=size))
        for size in (1, 3, 7, None)
    ]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-6)


def test_no_more_clients_are_in_memory_than_a_block_holds():
    built, state = simulation(plan(sampler=PoissonSampling(rate=1.0)), block_size=3)
    seen = []
    inner = built.engine.update

    def watching(params, clients, *rest):
        seen.append(len(clients))
        return inner(params, clients, *rest)

    with_update(built, watching).run_round(state)
    assert max(seen) == 3
    assert sum(seen) == 20


def test_stopping_after_any_round_and_going_on_changes_no_bit():
    built, state = simulation(plan(rounds=6))
    whole = list(built.run(state))
    for stopped in whole[:-1]:
        again, _ = simulation(plan(rounds=6))  # a new process would know nothing but the state
        *_, final = again.run(stopped)
        assert torch.equal(final.params, whole[-1].params)


def test_an_empty_cohort_is_a_round_that_pays_and_releases_noise():
    promised = plan(sampler=PoissonSampling(rate=1e-9), delta=1e-3)
    built, state = simulation(promised)
    after = built.run_round(state)
    moved = (after.params - state.params) * promised.expected_cohort
    assert after.round == 1
    assert len(built.server.ledger.entries) == 1
    assert float(moved.norm()) > 0.1  # the noise alone


def test_averages_divide_by_the_public_cohort_whoever_took_part():
    """One client more or fewer moves the average by its own update ÷ τN, smoothed, and no more."""
    promised = plan(noise_multiplier=0, clip_norm=math.inf, sampler=PoissonSampling(rate=0.35))
    cohort = promised.sampler.sample(20, SeededStreams(0).sampling(0))
    assert len(cohort) != promised.expected_cohort, "another rate, or the test says nothing"
    gone = cohort[0]
    clients = linear_clients()
    without = [*clients]
    without[gone] = (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    moves = []
    for data in (clients, without):
        built, state = simulation(promised, data=ClientData.from_pairs(data))
        moves.append(built.run_round(state).params - state.params)
    built, state = simulation(promised)
    update = built.engine.update(
        state.params, cohort[:1], 0, built.streams.shuffling(0), state.clip_norm
    )[0]
    expected = dpfedls.smooth(update[:12], 1.0) / 7
    torch.testing.assert_close((moves[0] - moves[1])[:12], expected, rtol=1e-4, atol=1e-6)


def test_without_noise_it_is_federated_averaging_and_says_it_is_not_private(caplog):
    clients, promised = (
        linear_clients(),
        plan(noise_multiplier=0, clip_norm=math.inf, rounds=3, sampler=PoissonSampling(rate=1.0)),
    )
    with caplog.at_level(logging.WARNING):
        result = train(plan=promised, local=local(epochs=1, batch_size=6, projection="final"))
    assert "NOT private" in caplog.text
    assert result.epsilon == math.inf
    model = start_model()
    for _ in range(3):  # FedAvg written out
        locals_ = []
        for features, targets in clients:
            mine = start_model()
            mine.load_state_dict(model.state_dict())
            optimizer = torch.optim.SGD(mine.parameters(), lr=0.2)
            nn.functional.cross_entropy(mine(features), targets).backward()
            optimizer.step()
            locals_.append(mine.state_dict())
        model.load_state_dict({k: torch.stack([s[k] for s in locals_]).mean(0) for k in locals_[0]})
    torch.testing.assert_close(weights(result), Layout.of(model).read(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strength", [0.0, 1.5])
def test_one_sample_and_one_step_a_client_is_dp_sgd(strength):
    """Against DP-SGD(-LS) written out with per-sample gradients and the same noise."""
    features, targets = (torch.cat(part) for part in zip(*linear_clients(10), strict=True))
    promised = plan(num_clients=60, rounds=3, clip_norm=0.8, sampler=PoissonSampling(rate=0.3))
    result = dpfedls.train(
        model=start_model(),
        clients=[(x[None], y[None]) for x, y in zip(features, targets, strict=True)],
        plan=promised,
        local=dpfedls.LocalSGD(steps=1, batch_size=1, learning_rate=1.0, projection="final"),
        denoiser=LaplacianSmoothing(strength=strength),
        server_rate=0.4,
        seed=2,
    )
    model, streams = start_model(), SeededStreams(2)
    layout = Layout.of(model)
    for t in range(3):
        batch = promised.sampler.sample(60, streams.sampling(t))
        clipped = torch.zeros(15)
        for i in batch:
            model.zero_grad()
            nn.functional.cross_entropy(model(features[i : i + 1]), targets[i : i + 1]).backward()
            gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
            clipped += gradient / max(1.0, float(gradient.norm()) / 0.8)
        noise = streams.noise(t)(15, torch.device("cpu")).float()
        noisy = (clipped - noise * promised.noise_stddev(promised.clip_norm)) / (0.3 * 60)
        step = torch.cat([dpfedls.smooth(piece, strength) for piece in noisy.split([12, 3])])
        layout.write(layout.read(model) - 0.4 * step, model)
    torch.testing.assert_close(weights(result), layout.read(model), rtol=1e-4, atol=1e-5)


def test_any_callable_is_a_denoiser_and_sees_the_release_only():
    seen = []

    def halve(release):
        seen.append(release)
        return release.value / 2

    train(denoiser=halve)
    assert {type(r) for r in seen} == {dpfedls.Release}
    assert seen[0].noise_stddev == pytest.approx(0.5 / 8)


def test_the_model_given_is_left_as_it_was_and_frozen_parameters_stay():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    before = [p.clone() for p in model.parameters()]
    trained = train(model=model).model
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(trained[0].weight, model[0].weight)
    assert not torch.equal(trained[1].weight, model[1].weight)


def test_regression_with_a_loss_of_ones_own():
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(4, generator=rng)
    x = torch.randn(20, 6, 4, generator=rng)
    result = dpfedls.train(
        model=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        clients=[(x[j], x[j] @ truth) for j in range(20)],
        plan=plan(noise_multiplier=0.01, rounds=20, clip_norm=1.0, delta=1e-2),
        local=local(),
        loss=lambda outputs, targets: (outputs - targets) ** 2,
        test=(x[0], x[0] @ truth),
    )
    assert result.accuracy is None
    assert result.loss < 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": []}, "clients is empty"),
        ({"clients": linear_clients(19)}, "the plan is for 20 clients, but there is data of 19"),
        ({"device": "cuda:7"}, "device 'cuda:7' is not there"),
        ({"device": "gpu"}, "device 'gpu' is not there"),
        ({"block_size": 0}, "block_size must be > 0"),
        ({"seed": -1}, "seed must be a finite number >= 0"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}, "dpfedls.prepare"),
        ({"test": (torch.zeros(0, 4), torch.zeros(0).long())}, "test holds no samples"),
        ({"plan": plan(noise_multiplier=None)}, "no noise yet"),
    ],
)
def test_bad_input_is_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        train(**changes)
    assert "\n" not in str(caught.value)


CLIENTS = linear_clients()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": [(x, y, y) for x, y in CLIENTS]}, "not a pair of tensors"),
        ({"clients": [(x[:, :3], y) for x, y in CLIENTS]}, "cannot be fed a sample of clients"),
        ({"model": nn.Linear(4, 3).double()}, r"use model\.float\(\)"),
        ({"model": nn.LazyLinear(3)}, "has no shape yet"),
        ({"loss": nn.CrossEntropyLoss()}, "one loss per sample"),
        ({"denoiser": "laplacian"}, "cannot be called with a release"),
        ({"denoiser": LaplacianSmoothing}, "cannot be called with a release"),
        ({"denoiser": lambda release: release.value[:2]}, "must return a tensor of that shape"),
        ({"server_rate": math.inf}, "server_rate must be a finite number"),
        ({"server_rate": 1e300}, "training diverged"),
        ({"device": "meta"}, "device 'meta' is not there"),
        ({"test": (CLIENTS[0][0], CLIENTS[0][1][:2])}, "6 rows of features but 2 targets"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(changes, message):
    with pytest.raises(InputError, match=message):
        train(**changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: plan(rounds=2.5),
        lambda: plan(rounds=True),
        lambda: plan(num_clients=math.nan),
        lambda: plan(sampler=None),
        lambda: plan(sampler=0.1),
        lambda: plan(clip_norm="0.3"),
        lambda: plan(clip_norm=1e-320),
        lambda: local(epochs=2.5),
        lambda: local(projection="foo"),
        lambda: LaplacianSmoothing(strength=1.0, scope="foo"),
        lambda: LaplacianSmoothing(order="HWBC"),
        lambda: FixedSizeSampling(cohort=2.5),
        lambda: PoissonSampling(rate="often"),
        lambda: plan().calibrated(1.0, "paper"),
        lambda: dpfedls.effective_dimension(3, 1.0, power=3),
        lambda: dpfedls.smooth(torch.arange(4), 1.0),
        lambda: ClientData(torch.zeros(4, 1), torch.zeros(4), np.array([0, 1]), np.array([2, 2])),
        lambda: ClientData(torch.zeros(4, 1), torch.zeros(4), np.array([0, 2]), np.array([2, 3])),
        lambda: ClientData(torch.zeros(4, 1), torch.zeros(4), np.array([-1, 2]), np.array([2, 2])),
    ],
)
def test_values_that_are_not_what_they_should_be_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_a_parameter_that_the_loss_does_not_see_stays():
    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.spare = nn.Parameter(torch.ones(5))

    result = train(model=Spare(), plan=plan(noise_multiplier=0, clip_norm=math.inf))
    assert torch.equal(result.model.spare, torch.ones(5))


def test_bad_samples_are_refused_with_their_place():
    clients = linear_clients()
    for poison, message in (
        ((torch.full((6, 4), math.nan), clients[2][1]), r"clients\[2\] has 6 samples with NaN"),
        ((clients[2][0], torch.full((6,), 3)), "labels from 3 to 3, but the model has 3 outputs"),
        ((clients[2][0], clients[2][1][:5]), r"clients\[2\] has 6 rows of features but 5 targets"),
        ((clients[2][0], clients[2][1].float()), r"clients\[2\] .* targets of torch.float32"),
    ):
        data = [*clients[:2], poison, *clients[3:]]
        with pytest.raises((InputError, TypeError), match=message):
            train(clients=data)
    whole = [(x.long(), y) for x, y in clients]
    with pytest.raises(InputError, match=r"needs floats; convert them with x\.float"):
        train(clients=whole)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_broken_client_counts_as_one_that_sent_nothing_or_its_share(value):
    """One client's update is overwritten; the sum moves by no more than the clip norm."""
    promised = plan(sampler=PoissonSampling(rate=1.0), noise_multiplier=0)

    def total(broken):
        built, state = simulation(promised)
        inner = built.engine.update

        def update(params, clients, *rest):
            updates = inner(params, clients, *rest)
            updates[list(clients).index(5)] = broken
            return updates

        moved = with_update(built, update).run_round(state).params
        return (moved - state.params) * 20

    assert float((total(value) - total(0.0)).norm()) <= 0.5 + 1e-5
    if not math.isfinite(value):
        assert torch.equal(total(value), total(0.0))
