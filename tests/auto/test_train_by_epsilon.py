"""train(model, clients, epsilon): what is chosen, and that it suits data of any scale."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import dpfedls
from dpfedls import InputError
from dpfedls.auto.by_model import ALL, rates_for
from dpfedls.auto.choices import OPEN
from dpfedls.people.losses import cross_entropy
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs.fitting import ready
from dpfedls.runs.train import recipe_for
from dpfedls.stepping import NoiseRate
from dpfedls.tasks.task import make_task

RNG = torch.Generator().manual_seed(0)
WEIGHTS = torch.randn(12, generator=RNG)


def people(scale: float = 1.0) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple]:
    x = torch.randn(240, 8, 12, generator=RNG)
    y = scale * (x @ WEIGHTS)[..., None]
    return list(zip(x[:200], y[:200], strict=True)), (x[200:].flatten(0, 1), y[200:].flatten(0, 1))


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().mean(dim=1)


def squared_to_one(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - targets).square()


def test_a_regression_is_learned_in_any_unit():
    clients, test = people(1e6)
    torch.manual_seed(0)
    result = dpfedls.train(
        model=nn.Linear(12, 1), clients=clients, epsilon=4.0, test=test, loss=squared
    )
    assert result.loss is not None
    assert result.loss < 0.1 * float(test[1].square().mean())


def test_a_network_learns_a_regression_in_large_units():
    """With steps as long as ever the loss is 1e30: each makes the next one longer."""
    clients, test = people(200.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    result = dpfedls.train(model, clients, epsilon=4.0, test=test, loss=squared)
    assert result.loss is not None
    assert result.loss < 0.2 * float(test[1].square().mean())


def test_a_classifier_learns_from_inputs_in_large_units():
    """0.84; with steps as long as ever 0.44, and a clip norm that grows to the limit."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(240, 20, 12, generator=rng)
    y = (x @ torch.randn(12, 3, generator=rng)).argmax(dim=2)
    clients = list(zip(300 * x[:200], y[:200], strict=True))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    result = dpfedls.train(model=model, clients=clients, epsilon=4.0)
    assert result.recipe.local.retry_step == 0.3
    assert "trains again with shorter steps" in result.recipe.chosen["local.retry_step"]
    found = result.model(300 * x[200:].flatten(0, 1)).argmax(dim=1)
    assert float((found == y[200:].flatten()).float().mean()) > 0.8


def test_more_rounds_are_not_taken_where_the_loss_has_an_exponential():
    """A plan for the same promise; by the other one the loss of `spread` is five times as large."""
    x, y = torch.randn(500, 2, 12, generator=RNG), torch.zeros(500, 2)
    given = {"model": nn.Linear(12, 1), "clients": list(zip(x, y, strict=True)), "epsilon": 8.0}

    def counts(outputs, targets):
        return outputs[:, 0].exp() - targets * outputs[:, 0]

    usual, _, _ = recipe_for(**given, loss=squared_to_one)
    recipe, _, _ = recipe_for(**given, loss=counts)
    assert (usual.plan.rounds, recipe.plan.rounds) == (400, 100)
    assert 7.9 < recipe.plan.epsilon() <= usual.plan.epsilon() <= 8.0
    assert recipe.chosen["plan.rounds"].startswith("100")
    values = {"task": "synthetic-logistic", "calibrate": {"epsilon": 8.0}}
    values["plan"] = {"num_clients": 500, "clip_norm": 0.3}
    told = recipes.decode(values, "mine", [])
    made = ready(told, dpfedls.Task(given["clients"], given["model"], None, loss=counts))
    assert (made.plan.rounds, made.plan.clip_norm) == (100, 0.3)
    assert made.plan.epsilon() <= 8.0


def test_a_falling_rate_starts_higher_than_a_constant_one():
    """So that it goes as far; noise may ask for less."""
    x, y = torch.randn(3000, 1, 12, generator=RNG), torch.zeros(3000, 1, dtype=torch.long)
    given = {"model": nn.Linear(12, 3), "clients": list(zip(x, y, strict=True)), "epsilon": 8.0}
    given["local"] = dpfedls.LocalSGD(steps=25, learning_rate=0.05)
    for schedule, most in (("linear", 2.0), ("root", 1.5), ("constant", 1.0)):
        recipe, _, _ = recipe_for(**given, schedule=schedule)
        assert isinstance(recipe.server_rate, NoiseRate)
        assert recipe.server_rate.at_most == most
        recipe, _, _ = recipe_for(
            **given, schedule=schedule, loss=lambda o, t: (o[:, 0] - t).square()
        )
        assert recipe.server_rate == most


def many_people(noise):
    return dpfedls.PrivacyPlan(
        sampler=dpfedls.PoissonSampling(rate=0.1),
        num_clients=10_000,
        rounds=400,
        clip_norm=dpfedls.AdaptiveClipping(),
        noise_multiplier=noise,
    )


def fitted(
    noise, schedule="linear", loss=cross_entropy, given=(), rounds=400, model=None, public=True
):
    samples = torch.randn(9, 12, generator=RNG), torch.zeros(9, dtype=torch.long)
    plan = replace(many_people(noise), rounds=rounds)
    return rates_for(
        plan, schedule, model or nn.Linear(12, 3), loss,
        samples=samples, public=public, open_=ALL - set(given),
    )  # fmt: skip


@pytest.mark.parametrize("noise", [1.0, 5.0])
def test_where_the_largest_rate_is_the_limit_people_go_once_through_their_samples(noise):
    """Noise of 5 is 0.12 in a weight at a rate of 2, of the 0.16 that it bears: no limit."""
    found = fitted(noise)
    assert found.server == NoiseRate(noise=0.16, at_most=60.0)
    assert dpfedls.LocalSGD(**found.local) == dpfedls.LocalSGD(
        epochs=1, most_steps=25, learning_rate=0.025
    )
    assert "one pass" in found.why["local.epochs"]
    assert "local.steps" not in found.why
    assert "at most 60" in found.why["server_rate"]


THREE_PASSES = dpfedls.LocalSGD(
    epochs=3, most_steps=25, learning_rate=0.05, overshoot=8.0, shorten=16.0
)


@pytest.mark.parametrize(
    ("noise", "public"),
    [
        (1.0, False),  # nobody knows the units of the inputs: one pass would not notice large ones
        (10.0, False),
        (20.0, True),  # noise is the limit, and not the largest rate
    ],
)
def test_with_some_noise_or_unknown_inputs_people_go_three_times_through_their_samples(
    noise, public
):
    found = fitted(noise, public=public)
    assert found.server == NoiseRate(noise=0.16, at_most=10.0)
    assert dpfedls.LocalSGD(**found.local) == THREE_PASSES
    assert "large units" in found.why["local.overshoot"]
    assert "at most 10" in found.why["server_rate"]


def test_a_convolution_goes_half_as_far():
    """Its weights act at every position: tanh at ε = 4 has 95.7 instead of 94.1 % on MNIST."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(20, 3)
    )
    found = fitted(1.0, model=model)
    assert isinstance(found.server, NoiseRate)
    assert (found.server.at_most, found.local["learning_rate"]) == (30.0, 0.025)


@pytest.mark.parametrize(
    ("noise", "other", "rates"),
    [
        (30.0, {}, (2.0, 0.05)),  # noise of 0.7 in a weight: few passes would learn too little
        (20.0, {"public": False}, (2.0, 0.05)),  # 25 steps tell large units better
        (1.0, {"schedule": "constant"}, (1.0, 0.05)),
        (1.0, {"given": ["learning_rate"]}, (20.0, 0.05)),
        (1.0, {"given": ["shorten"]}, (20.0, 0.05)),  # as where a clip norm is given
        (5.0, {"given": ["learning_rate"]}, (2.0, 0.05)),
        (1.0, {"given": ["server_rate"]}, (20.0, 0.05)),  # long steps of the server are not ours
        (5.0, {"given": ["server_rate"], "rounds": 200}, (2.0, 0.05)),
        (5.0, {"rounds": 200}, (20.0, 0.00625)),  # in few rounds one pass each is too little
    ],
)
def test_elsewhere_everybody_trains_as_long(noise, other, rates):
    found = fitted(noise, **other)
    assert isinstance(found.server, NoiseRate)
    assert (found.server.at_most, found.local["learning_rate"]) == rates
    assert f"at most {rates[0]:g}" in found.why["server_rate"]
    assert ("larger server rate" in found.why["local.learning_rate"]) == (rates[1] < 0.05)
    assert rates[1] / found.local["shorten"] == 0.05 / 16  # after a stall, the same everywhere
    assert "local.epochs" not in found.why


@pytest.mark.parametrize("noise", [1.0, 5.0, 50.0])
def test_a_loss_of_ones_own_keeps_its_limit(noise):
    own = fitted(noise, loss=squared).server
    assert isinstance(own, float)
    assert own <= 2.0


def test_passes_are_what_the_recipe_says_and_what_is_given_stays():
    x, y = torch.randn(9000, 2, 12, generator=RNG), torch.zeros(9000, 2, dtype=torch.long)
    given = {"model": nn.Linear(12, 3), "clients": list(zip(x, y, strict=True)), "epsilon": 8.0}
    recipe, _, _ = recipe_for(**given, standardise=False)  # so nobody knows the units
    assert recipe.local == THREE_PASSES
    for test in (None, (x[0], y[0])):
        recipe, _, _ = recipe_for(**given, test=test)
        assert (recipe.local.epochs, recipe.local.steps, recipe.local.most_steps) == (1, None, 25)
    assert {"local.epochs", "local.most_steps"} < set(recipe.chosen)
    assert OPEN not in recipe.chosen.values()
    assert "local.steps" not in recipe.chosen
    local = dpfedls.LocalSGD(steps=3)
    recipe, _, _ = recipe_for(**given, local=local)
    assert recipe.local == local
    # One pass goes with a server rate of up to 60: with rate 1 it would be far too short.
    recipe, _, _ = recipe_for(**given, server_rate=1.0)
    assert (recipe.local.steps, recipe.local.learning_rate) == (25, 0.05)
    assert recipe.server_rate == 1.0
    assert "25" in recipe.chosen["local.steps"]
    assert not {"local.epochs", "server_rate"} & set(recipe.chosen)


def test_a_run_of_many_people_goes_on_where_auto_was_said(tmp_path):
    x, y = torch.randn(9000, 4, generator=RNG), torch.zeros(9000, dtype=torch.long)
    given = {"model": nn.Linear(4, 3), "epsilon": 8.0, "server_rate": "auto"}
    given |= {
        "clients": dpfedls.ClientData.from_arrays(x, y, range(9000)),
        "folder": tmp_path / "r",
    }

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**given, watch=[stop])
    began = recipes.read(str(tmp_path / "r" / "recipe.toml"))
    going_on, _, _ = recipe_for(**given)
    assert (going_on.server_rate, going_on.local) == (began.server_rate, began.local)
    assert going_on.chosen == began.chosen


@pytest.mark.parametrize("setting", ["local.steps=10", "local.retry_step=0.5", "server_rate=1.0"])
def test_what_is_set_over_an_open_recipe_is_kept(setting):
    values = {"task": "synthetic-logistic", "calibrate": {"epsilon": 8.0}}
    values["plan"] = {"num_clients": 9000}
    still_open = recipes.encode(recipes.decode(values, "mine", []))
    recipe = recipes.decode(tomllib.loads(still_open), "again", [setting])
    made = ready(recipe, make_task(recipe.task, 60, SeededStreams(0)))
    assert made.local.epochs is None
    found = made.server_rate if setting.startswith("server") else made.local
    assert setting.partition("=")[2] in str(found)
    assert OPEN not in made.chosen.values()


def test_a_limit_of_passes_alone_asks_for_passes():
    values = {"task": "synthetic-logistic", "calibrate": {"epsilon": 8.0}}
    with pytest.raises(InputError, match="give exactly one of them"):
        recipes.decode(values | {"local": {"most_steps": 5}}, "mine", [])


@pytest.mark.parametrize(
    ("given", "shorten"),
    [
        ({}, 16.0),
        ({"plan": {"num_clients": 60, "clip_norm": 0.3}}, None),  # nobody can vote
        ({"local": {"shorten": 4.0}}, 4.0),
    ],
)
def test_votes_are_asked_for_where_nothing_else_is_given(given, shorten):
    values = {"task": "synthetic-logistic", "calibrate": {"epsilon": 4.0}, **given}
    values = {"plan": {"num_clients": 60}, **values}
    recipe = recipes.decode(values, "mine", [])
    ready_made = ready(recipe, make_task(recipe.task, 60, SeededStreams(0)))
    assert ready_made.local.shorten == shorten
    assert ("local.shorten" in ready_made.chosen) == (not given)


def test_what_is_given_stays_and_what_is_chosen_has_its_reason(tmp_path):
    clients, test = people()
    local = dpfedls.LocalSGD(epochs=1, learning_rate=0.2)
    result = dpfedls.train(
        model=nn.Linear(12, 1),
        clients=clients,
        epsilon=2.0,
        test=test,
        loss=squared,
        local=local,
        schedule="constant",
        folder=tmp_path / "r",
    )
    assert result.recipe.local == local
    assert result.recipe.schedule == "constant"
    assert set(result.recipe.chosen) == {
        "plan.rounds", "plan.delta", "plan.clip_norm", "denoiser", "server_rate",
    }  # fmt: skip
    assert result.epsilon <= 2.0
    page = (tmp_path / "r" / "report.html").read_text()
    assert "What was chosen" in page
    rates = {record.server_rate for record in result.history}
    assert len(rates - {0.0}) == 1  # but while the clip norm is far too long


def test_a_plan_alone_is_trained_as_ever():
    clients, test = people()
    plan = dpfedls.PrivacyPlan(
        sampler=dpfedls.PoissonSampling(rate=0.1),
        num_clients=200,
        rounds=2,
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    arguments = {"model": nn.Linear(12, 1), "clients": clients, "plan": plan, "loss": squared}
    result = dpfedls.train(**arguments)
    assert (result.recipe.server_rate, result.recipe.schedule) == (1.0, "constant")
    assert result.recipe.denoiser == dpfedls.Identity()
    assert result.recipe.chosen == {}
    result = dpfedls.train(**arguments, server_rate="auto", test=test)
    assert isinstance(result.recipe.server_rate, float)
    assert list(result.recipe.chosen) == ["server_rate"]


def test_a_recipe_of_two_lines_is_the_same_thing():
    values = {"task": "synthetic-logistic", "calibrate": {"epsilon": 2.0}}
    recipe = recipes.decode(dict(values), "two lines", [])
    assert recipe.server_rate == "auto"
    assert recipe.plan.num_clients == 500
    assert "plan.rounds" in recipe.chosen
    fewer = recipes.decode(dict(values), "two lines", ["plan.rounds=7"])
    assert fewer.plan.rounds == 7
    assert "plan.rounds" not in fewer.chosen
    given = recipes.decode({**values, "server_rate": {"kind": "noise", "noise": 0.1}}, "x", [])
    assert given.server_rate == NoiseRate(noise=0.1)
    assert "server_rate" not in given.chosen
    with pytest.raises(dpfedls.InputError, match=r"plan\.num_clients"):
        recipes.decode({**values, "task": "svhn-attack"}, "x", [])


def test_the_learning_rate_is_chosen_whatever_else_is_given():
    """Inputs of 30 units: steps of the usual rate would be a thousand times too long."""
    clients, (x, y) = people()
    given = {
        "model": nn.Linear(12, 1),
        "clients": [(30 * x, y) for x, y in clients],
        "test": (30 * x, y),
        "loss": squared,
        "epsilon": 4.0,
        "standardise": False,
    }
    alone, task, _ = recipe_for(**given)
    assert alone.local.learning_rate < 1e-3
    for other in ({"server_rate": 0.5}, {"schedule": "constant"}, {"server_rate": 1.0, "seed": 2}):
        recipe, _, _ = recipe_for(**given | other)
        assert recipe.local == alone.local
        assert recipe.server_rate == other.get("server_rate", recipe.server_rate)
        assert ("server_rate" in recipe.chosen) == ("server_rate" not in other)
    recipe, _, _ = recipe_for(**given | {"server_rate": 0.5})
    assert (recipe.schedule, recipe.averaging) == ("root", 0.0)
    assert ready(recipe, task) is recipe  # a resumed run finds nothing left to choose


def test_each_key_of_a_recipe_that_is_left_out_is_chosen():
    def read(*settings: str) -> recipes.Recipe:
        return recipes.read("automatic", list(settings)).resolved()

    usual = read().local
    fewer = read("local.batch_size=20", "server_rate=1.0")
    assert fewer.local == recipes.msgspec.structs.replace(usual, batch_size=20)
    assert {"local.steps", "local.retry_step", "local.learning_rate"} < set(fewer.chosen)
    assert "local.batch_size" not in fewer.chosen
    task = make_task(fewer.task, 400, SeededStreams(0))
    assert ready(fewer, task).chosen["local.learning_rate"].startswith("0.05: steps")
    epochs = read("local.epochs=2", "local.learning_rate=0.3")
    assert (epochs.local.epochs, epochs.local.steps) == (2, None)
    assert not {"local.steps", "local.learning_rate"} & set(epochs.chosen)
    for own in (epochs, read("local.steps=2")):  # its steps would all end inside the ball
        assert own.local.retry_step is None
        assert "local.retry_step" not in own.chosen
    assert ready(epochs, task).local.learning_rate == 0.3
    rdp = read("calibrate.accountant=rdp").plan
    assert rdp.noise > read().plan.noise
    assert rdp.epsilon("rdp") == pytest.approx(1.0, rel=2e-3)
    with pytest.raises(dpfedls.InputError, match="local"):
        read("local=3")


def test_a_rare_class_is_learned_although_most_people_soon_have_nothing_to_say():
    """The norm followed them to nothing, and the model knew the frequent class alone.

    Without the floor the loss is 0.49, with it 0.04; 0.65 and 0.18 where both seeds are 1.
    """
    rng = np.random.default_rng(0)
    labels = (rng.random(3000 + 2000) < 0.08).astype(np.int64)
    x = rng.normal(size=(5000, 10)) + 3.0 * labels[:, None] * rng.normal(size=10) / np.sqrt(10)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(labels)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    people = [(x[i : i + 1], y[i : i + 1]) for i in range(3000)]
    result = dpfedls.train(net, people, epsilon=2.0)
    assert result.plan.clipping.floor == 0.5
    assert "rare classes count" in result.recipe.chosen["plan.clip_norm"]
    loss = nn.functional.cross_entropy(result.model(x[3000:]), y[3000:])
    share = y[3000:].float().mean()
    constant = -(share * share.log() + (1 - share) * (1 - share).log())
    assert loss < 0.8 * constant
