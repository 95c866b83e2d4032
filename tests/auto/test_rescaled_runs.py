"""Runs whose last rounds ask how sure the model may be: chosen, resumed, audited, refused."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import raw_people
import torch
from raw_people import ASKS, network, people, usual
from torch import nn

import dpfedls
from dpfedls import Identity, LocalSGD, Rescale
from dpfedls.auditing.recipe import audit
from dpfedls.clipping import Bound
from dpfedls.engine import choose
from dpfedls.errors import InputError
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy
from dpfedls.people.rescale import slopes_of
from dpfedls.people.survey import Measured
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.observers import Nodes
from dpfedls.runs import recipes
from dpfedls.runs.simulate import prepare
from dpfedls.runs.train import recipe_for

LINEAR = nn.Linear(6, 3)
plan = functools.partial(raw_people.plan, count=60, rounds=12, clip_norm=0.5)


def test_the_last_rounds_make_a_model_less_sure_and_no_less_accurate():
    """Half of the labels are noise; one row a person. With noise on the answers, a fixed seed."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(3000, 6, generator=rng)
    y = torch.where(
        torch.rand(3000, generator=rng) < 0.5,
        (x[:, 0] > 0).long(),
        torch.randint(0, 2, (3000,), generator=rng),
    )
    clients = [(x[i : i + 1], y[i : i + 1]) for i in range(2000)]
    torch.manual_seed(0)
    model, losses, right = nn.Linear(6, 2), {}, {}
    for asks in (False, None):
        result = dpfedls.train(model, clients, epsilon=1.0, rescale=asks)
        outputs, held = result.model(x[2000:]), y[2000:]
        losses[asks] = float(nn.functional.cross_entropy(outputs, held).detach())
        right[asks] = float((outputs.argmax(1) == held).float().mean())
        assert result.epsilon <= 1.0
    assert losses[None] < 0.66 < 0.7 < losses[False]  # a constant's is 0.69
    assert right[None] > right[False] - 0.01


def test_trainings_end_before_the_last_rounds_and_the_average_is_what_they_ask_about():
    recipe, task, _ = recipe_for(
        model=network(), clients=usual(), plan=plan(), rescale=Rescale(rounds=4), averaging=1.0,
        schedule="linear",
    )  # fmt: skip
    simulation, model = prepare(recipe, task, Identity())
    server = simulation.server
    start = server.start(server.layout.read(model))
    assert server.trainings(start) == 8
    steps, states = [server.step(start)], [start]
    for state in simulation.run(start):
        states.append(state)
        if state.round < 8:
            steps.append(server.step(state))
        assert server.rescales(state) == (state.round >= 8)
    assert steps == pytest.approx([1 - t / 8 for t in range(8)])
    trained, last = states[8], states[-1]
    assert torch.equal(server.broadcast(trained), trained.average)
    assert not torch.equal(trained.average, trained.params)
    assert torch.equal(last.params, last.average)
    before, after = (server.layout.split(s.average) for s in (trained, last))
    assert torch.equal(before["0.weight"], after["0.weight"])
    factor = after["2.weight"] / before["2.weight"]
    assert torch.allclose(factor, factor[0, 0].expand_as(factor))
    assert float(factor[0, 0]) != 1


def test_a_run_that_stops_in_the_last_rounds_goes_on_to_the_same_model(tmp_path):
    given = {"model": network(), "clients": usual(), "plan": plan(clip_norm=AdaptiveClipping())}
    given |= {"rescale": Rescale(rounds=4, shift=True), "test": usual(1)[0]}
    whole = dpfedls.train(**given)
    assert [line.server_rate for line in whole.history[-4:]] == [0.0] * 4

    def stop(record):
        if record.round == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**given, folder=tmp_path / "r", watch=[stop])
    result = dpfedls.train(**given, folder=tmp_path / "r")
    assert torch.equal(*(Layout.of(r.model).read(r.model) for r in (whole, result)))
    assert recipes.read(str(tmp_path / "r" / "recipe.toml")).rescale == given["rescale"]


def chosen(model=LINEAR, columns=6, people_=1000, epsilon=1.0, **given):
    given = {"clients": [(torch.zeros(1, columns), torch.zeros(1).long())] * people_} | given
    recipe, _, _ = recipe_for(model=model, epsilon=epsilon, **given)
    return recipe


def test_epsilon_alone_asks_of_classifiers_of_tables_and_says_why():
    recipe = chosen()
    assert recipe.rescale == Rescale(rounds=6)
    assert recipe.chosen["rescale"].startswith("6 rounds at the end ask")
    assert chosen(people_=20_000).rescale == Rescale(rounds=12, shift=True)
    halved = chosen(loss=lambda outputs, targets: 0.5 * cross_entropy(outputs, targets))
    assert halved.rescale == Rescale(rounds=6, slope=0.71)  # √2 ÷ 2
    for other in (
        chosen(rescale=False),
        chosen(model=nn.Linear(64, 3), columns=64),
        chosen(model=nn.Linear(6, 3, bias=False)),
        chosen(loss=lambda outputs, targets: (outputs[:, 0] - targets).square()),
        chosen(people_=160),
        chosen(model=nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6), nn.Flatten())),
        chosen(
            model=nn.Sequential(
                nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3)
            )
        ),
        chosen(nodes=Nodes()),
        chosen(local=LocalSGD(steps=5)),
    ):
        assert other.rescale is False
    assert "too much noise" in chosen(people_=160).chosen["rescale"]
    assert recipe_for(model=LINEAR, clients=usual(), plan=plan())[0].rescale is False


def transposed(outputs, targets):
    return nn.functional.cross_entropy(
        outputs.transpose(1, 2), targets[:, None].expand(-1, 2), reduction="none"
    ).mean(dim=1)


def in_place(outputs, targets):
    outputs -= outputs.detach().amax(dim=1, keepdim=True)
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("model", "loss"),
    [(nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))), transposed), (LINEAR, in_place)],
)
@pytest.mark.parametrize("gradients", [True, False])
def test_losses_of_other_shapes_and_in_place_are_asked_about_too(model, loss, gradients):
    """Also where gradients are off outside, as around an evaluation."""
    given = {"model": model, "clients": usual(), "loss": loss, "rescale": Rescale(rounds=2)}
    with torch.set_grad_enabled(gradients):
        result = dpfedls.train(**given, plan=plan())
    assert len(result.history) == 12


def no_slopes(outputs, targets):
    return nn.functional.cross_entropy(outputs.detach(), targets, reduction="none")


class Stubborn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        return scores * 1.0

    @staticmethod
    def backward(ctx, slopes):
        raise RuntimeError("no way back")


def stubborn(outputs, targets):
    return nn.functional.cross_entropy(Stubborn.apply(outputs), targets, reduction="none")


@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_a_loss_that_cannot_answer_is_refused_before_a_round_is_paid_for(mode, tmp_path):
    given = {"model": LINEAR, "clients": usual(), "plan": plan(), "loss": stubborn}
    with pytest.raises(InputError, match=r"cannot say \(RuntimeError\)"):
        dpfedls.train(**given, rescale=Rescale(rounds=2), mode=mode, folder=tmp_path / "r")
    assert chosen(loss=stubborn).rescale is False
    assert slopes_of(no_slopes, torch.ones(4, 3), torch.zeros(4).long(), 3).tolist() == [0.0] * 4


def test_a_stall_that_was_voted_for_is_no_alarm_in_the_last_rounds():
    """The audit of a run whose people find that learning stalls, and are asked at its end."""
    recipe, task, _ = recipe_for(
        model=LINEAR,
        clients=usual(400, 2),
        plan=plan(rounds=40, noise=0.05, clip_norm=AdaptiveClipping(), count=400),
        local=LocalSGD(steps=2, learning_rate=1e-9, shorten=16.0),
        rescale=Rescale(rounds=1),
        denoiser=Identity(),
    )
    assert audit(recipe, task, rounds=40, trials=60)["problems"] == []


def test_people_are_asked_in_the_units_that_the_first_rounds_found():
    """As in a run whose units are given: the same answers, to rounding."""
    clients = people(60)
    both = {"standardise": ASKS, "rescale": Rescale(rounds=3, shift=True)}
    recipe, task, _ = recipe_for(
        model=network(), clients=clients, plan=plan(rounds=20, noise=0.01), **both
    )
    simulation, model = prepare(recipe, task, Identity())
    server, state = simulation.server, None
    for state in simulation.run(server.start(server.layout.read(model))):
        if state.round == 17:
            break
    assert state is not None
    units, question = server.units(state), server.rescaling.question
    bound, who = Bound(1.0, question=question), np.arange(60)
    found = simulation.engine.in_units(units).answers(server.broadcast(state), who, bound)
    data = ClientData.from_pairs([(units(x), y) for x, y in clients])
    twin = choose(network(), data, recipe.local, engine="looped")
    assert torch.allclose(found, twin.answers(units.inward(state.average), who, bound), atol=1e-5)
    assert float(found.norm(dim=1).max()) > 0.01


def test_a_recipe_file_can_decline(tmp_path):
    kept = tmp_path / "own.toml"
    kept.write_text('task = "mnist-logistic"\ncalibrate = { epsilon = 4.0 }\nrescale = false\n')
    assert recipes.read(str(kept), ["plan.num_clients=500"]).rescale is False
    with pytest.raises(InputError, match="rescale = true does not say"):
        recipes.read(str(kept), ["plan.num_clients=500", "rescale=true"])


def test_wrong_wishes_are_refused_in_one_line():
    given = {"model": network(), "clients": usual()}
    with pytest.raises(InputError, match=r"rescale.rounds must be > 0, got 0"):
        Rescale(rounds=0)
    with pytest.raises(InputError, match=r"leave none of plan.rounds = 12 to train"):
        recipe_for(**given, plan=plan(), rescale=Rescale(rounds=12))
    with pytest.raises(InputError, match="rescale = true does not say"):
        recipe_for(**given, plan=plan(), rescale=True)
    asks = Measured(first=1, sizes=196)
    assert chosen(standardise=asks).rescale is False  # our own choice refuses nobody's
    with pytest.raises(InputError, match="clip_norm = inf bounds no answer"):
        recipe_for(**given, plan=plan(clip_norm=math.inf, noise=0.0), rescale=Rescale(rounds=2))
    with pytest.raises(InputError, match="rescale is for runs on one machine"):
        recipe_for(**given, plan=plan(), rescale=Rescale(rounds=2), nodes=Nodes())
    ended = nn.Sequential(network(), nn.LogSoftmax(dim=1))
    with pytest.raises(InputError, match="rescale needs a model whose last layer is linear"):
        dpfedls.train(**given | {"model": ended}, plan=plan(), rescale=Rescale(rounds=2))
