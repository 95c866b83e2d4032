"""Inputs in units of their own: people train on standardised columns, the model takes them raw."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfedls
from dpfedls import ClientData, InputError, LocalSGD, Momentum, PoissonSampling, PrivacyPlan
from dpfedls.auto.inputs import inputs_for
from dpfedls.denoising import Identity
from dpfedls.parameters import Layout
from dpfedls.people.lazy import LazyClients
from dpfedls.people.losses import cross_entropy
from dpfedls.people.units import Standardised, folded, standardised
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.privacy.observers import Nodes
from dpfedls.runs.fitting import units_of
from dpfedls.runs.train import recipe_for
from dpfedls.runs.verify import verify
from dpfedls.server import Server
from dpfedls.tasks.task import Task

SCALES = torch.tensor([1e-3, 1.0, 30.0, 2000.0, 1.0, 5.0])
MEANS = torch.tensor([0.0, 3.0, -50.0, 90_000.0, 0.0, 1.0])


def samples(count, seed, scales=SCALES, means=MEANS):
    """Three classes by six columns; in which units, the last two arguments say."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=rng)
    way = torch.randn(6, 3, generator=torch.Generator().manual_seed(99))
    return x * scales + means, (2 * x @ way).argmax(dim=1)


def people(count=60, each=8, **units):
    x, y = samples(count * each, 1, **units)
    return list(zip(x.split(each), y.split(each), strict=True))


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Looked(nn.Module):
    """Its first column is a token."""

    def __init__(self):
        super().__init__()
        self.rows, self.last = nn.Embedding(100, 2), nn.Linear(7, 3)

    def forward(self, x):
        return self.last(torch.cat([self.rows(x[:, 0].long()), x[:, 1:]], dim=1))


class Twice(nn.Module):
    """Its inputs go past the first layer, too."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(x).relu() + x)


def zeros(layer):
    for weights in layer.parameters():
        nn.init.zeros_(weights)
    return layer


IMAGES = torch.rand(40, 3, 8, 8) * torch.tensor([255.0, 1.0, 90.0]).view(3, 1, 1)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Linear(6, 3), samples(50, 0)[0]),
        (nn.Linear(6, 3, bias=False), samples(50, 0)[0]),
        (network(), samples(50, 0)[0]),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 2)), IMAGES),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten()), IMAGES),
    ],
)
def test_one_model_in_two_coordinates(model, inputs):
    units = standardised(model, inputs)
    assert isinstance(units, Standardised)
    ours = units(inputs)
    assert 0.1 < float(ours.square().mean().sqrt()) < 10
    assert torch.allclose(model(ours), folded(model, units)(inputs), rtol=1e-3, atol=1e-3)
    vector = Layout.of(model).read(model)
    assert torch.allclose(units.inward(units.outward(vector)), vector, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), samples(50, 0)[0]),
        (Twice(), samples(50, 0)[0]),
        (nn.Sequential(nn.Linear(6, 3).requires_grad_(False), nn.Linear(3, 3)), samples(50, 0)[0]),
        (nn.Sequential(nn.LayerNorm(6), zeros(nn.Linear(6, 3))), samples(50, 0)[0]),
        (Looked(), samples(50, 0)[0].abs()),
        (nn.Linear(6, 3), torch.randn(50, 7, 6)),  # one layer at every position
        (nn.EmbeddingBag(10, 3), torch.randint(10, (50, 4))),
        (nn.Linear(6, 3), {"x": torch.randn(50, 6)}),
    ],
)
def test_a_model_that_cannot_take_units_in_is_found_out(model, inputs):
    assert standardised(model, inputs) is None


def test_columns_of_one_kind_share_a_scale_and_others_do_not():
    pixels = 255 * torch.rand(200, 6)
    pixels[1:, 4], pixels[:, 5] = 0.0, 0.0  # hardly ever on, and never
    shared = standardised(nn.Linear(6, 3), pixels)
    assert shared is not None
    assert len(shared.scale.unique()) == 1  # so that what is rare is not made large
    few = torch.tensor([1e-3, 1e-3, 20, 20, 20, 20])
    small = standardised(nn.Linear(6, 3), few * torch.randn(200, 6))
    assert small is not None
    assert torch.allclose(small.scale, few, rtol=0.2)
    x = torch.cat([samples(200, 0)[0][:, :5], torch.full((200, 1), 2026.0)], dim=1)
    apart = standardised(nn.Linear(6, 3), x)
    assert apart is not None
    assert torch.allclose(apart.scale[:5], SCALES[:5], rtol=0.2)
    assert torch.equal(apart(x)[:, 5], torch.zeros(200))  # constant: not a second, huge bias
    x[:, 5] = 1.7e9 + 100 * torch.randn(200)  # a time stamp, of which float32 holds no more
    stamped = standardised(nn.Linear(6, 3), x)
    assert stamped is not None
    assert float(stamped.scale[5]) == pytest.approx(1.7e9)
    levels = nn.functional.one_hot(torch.arange(200) % 20).float()
    mixed = standardised(nn.Linear(21, 3), torch.cat([levels, 1e4 * x[:, 1:2]], dim=1))
    assert mixed is not None
    assert mixed.scale[:20].max() < 1  # one long column does not set the scale of all


PLAN = PrivacyPlan(
    sampler=PoissonSampling(rate=0.3),
    num_clients=60,
    rounds=30,
    clip_norm=AdaptiveClipping(start=0.05, of_weights=0.1),
    noise_multiplier=0.6,
    delta=1e-2,
)


@pytest.mark.parametrize(
    ("engine", "lazy"),
    [("looped", False), ("vmapped", False), ("compiled", False), ("looped", True)],
)
def test_a_run_is_the_one_on_inputs_that_were_standardised_by_hand(engine, lazy):
    """Clients, noise, votes, clip norm, look-ahead, average: in the coordinates of people."""
    model, test, raw = network(), samples(300, 2), people()
    units = standardised(model, test[0])
    assert units is not None
    given = {
        "model": model, "plan": PLAN, "averaging": 0.5, "schedule": "root", "server_rate": 0.7,
        "local": LocalSGD(steps=4, batch_size=4, learning_rate=0.2, shorten=4.0),
        "denoiser": Momentum(decay=0.5), "engine": engine,
    }  # fmt: skip

    def clients(pairs):
        return LazyClients([TensorDataset(*own) for own in pairs]) if lazy else pairs

    ours = dpfedls.train(clients=clients(raw), test=test, standardise=True, **given)
    hand = [(units(x), y) for x, y in raw]
    theirs = dpfedls.train(clients=clients(hand), test=(units(test[0]), test[1]), **given)
    x, _ = samples(100, 4)
    assert torch.allclose(ours.model(x), theirs.model(units(x)), rtol=1e-2, atol=5e-3)
    assert [r.accuracy for r in ours.history] == pytest.approx(
        [r.accuracy for r in theirs.history], abs=0.02
    )
    norms = [[r.clip_norm for r in result.history] for result in (ours, theirs)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_people_vote_on_two_models_in_their_own_coordinates():
    model = network()
    plan = msgspec.structs.replace(PLAN, num_clients=4000, noise_multiplier=0.1, delta=1e-4)
    units, layout = standardised(model, samples(300, 2)[0]), Layout.of(model)
    assert units is not None
    ledger = MemoryLedger(plan)
    server = Server(plan, Identity(), layout, ledger, shorten=4.0, coordinates=units)
    state = dataclasses.replace(server.start(units.outward(layout.read(model))), round=7)
    earlier = server.bound(state).earlier
    assert earlier is not None
    assert torch.allclose(earlier, layout.read(model), rtol=1e-4, atol=1e-4)


def test_epsilon_alone_standardises_what_nobody_scaled(tmp_path):
    """And the folder holds the model for inputs as given: verified, and loaded by its own class."""
    clients, test = people(300), samples(1000, 2)
    arguments = {"model": nn.Linear(6, 3), "clients": clients, "epsilon": 4.0, "test": test}
    result = dpfedls.train(**arguments, folder=tmp_path / "r", evaluate_every=50)
    assert result.recipe.standardise
    assert "the columns of the test inputs" in result.recipe.chosen["standardise"]
    as_given = dpfedls.train(**arguments, standardise=False, evaluate_every=50)
    assert result.history[-1].accuracy > 0.85
    assert as_given.history[-1].accuracy < 0.75
    assert verify(tmp_path / "r")["problems"] == []
    again = dpfedls.load(tmp_path / "r", nn.Linear(6, 3))
    assert torch.equal(again(test[0]), result.model(test[0]))


def test_a_run_that_stops_goes_on_in_the_same_units(tmp_path):
    clients, test = people(), samples(300, 2)
    given = {"model": network(), "clients": clients, "plan": PLAN, "test": test}
    given |= {"standardise": True, "local": LocalSGD(steps=4, learning_rate=0.2)}
    whole = dpfedls.train(**given)

    def stop(record):
        if record.round == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**given, folder=tmp_path / "r", watch=[stop])
    result = dpfedls.train(**given, folder=tmp_path / "r")
    vectors = [Layout.of(r.model).read(r.model) for r in (whole, result)]
    assert torch.equal(*vectors)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (samples(50, 0, scales=1.0, means=0.0)[0], "the test inputs have a usual scale"),
        (samples(5, 0)[0], "5 test inputs are too few"),
        (nn.functional.one_hot(torch.arange(60) % 6).float(), "a usual scale, up to 0.41"),
        (nn.functional.one_hot(torch.arange(60) % 30).float()[:, :6], "a usual scale"),
        (torch.randint(9, (50, 6)), "not one floating-point tensor"),
    ],
)
def test_inputs_stay_as_given_where_nothing_is_to_be_gained(inputs, why):
    found = inputs_for(nn.Linear(6, 3), (inputs, torch.zeros(len(inputs)).long()), cross_entropy)
    assert not found.standardise
    assert why in found.why


def likelihood(outputs, targets):
    return nn.functional.nll_loss(outputs, targets, reduction="none")


def test_a_model_that_has_learned_its_units_keeps_them():
    x, y = samples(500, 0)
    units = standardised(nn.Linear(6, 3), x)
    assert units is not None
    model = nn.Linear(6, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(50):
        optimiser.zero_grad()
        cross_entropy(model(units(x)), y).mean().backward()
        optimiser.step()
    for end, loss in ((nn.Identity(), cross_entropy), (nn.LogSoftmax(dim=1), likelihood)):
        given = nn.Sequential(folded(model, units), end)
        found = inputs_for(given, (x, y), loss)
        assert found.why == "false: the model has learned from such inputs already"
        for _ in range(8):  # some fit their own targets better than others', by chance
            fresh = nn.Sequential(nn.Linear(6, 3), end)
            assert inputs_for(fresh, (x - MEANS, y), loss).why.startswith("true")


def test_units_follow_from_the_test_inputs_alone():
    """Whoever is among the people, whatever they have: else the units would tell."""
    test, found = samples(300, 2), []
    for clients in (people(), [(1e6 * x, y) for x, y in people()]):
        recipe, task, _ = recipe_for(model=network(), clients=clients, epsilon=8.0, test=test)
        found.append(units_of(recipe, task))
    assert all(isinstance(units, Standardised) for units in found)
    assert torch.equal(found[0].mean, found[1].mean)
    assert torch.equal(found[0].scale, found[1].scale)


def test_what_cannot_be_standardised_is_said():
    recipe, task, _ = recipe_for(
        model=network(), clients=people(), plan=PLAN, standardise=True, test=samples(9, 0)
    )
    with pytest.raises(InputError, match="asks for the test samples, since"):
        units_of(recipe, Task(task.data, task.model))
    with pytest.raises(InputError, match=r"standardise is for runs on one machine"):
        msgspec.structs.replace(recipe, nodes=Nodes())
    with pytest.raises(InputError, match="a model whose first layer, linear or a convolution"):
        dpfedls.train(
            model=Twice(), clients=people(), plan=PLAN, standardise=True, test=samples(9, 0)
        )


def test_samples_are_taken_in_their_units_wherever_they_lie():
    x, y = samples(12, 0)
    units = standardised(nn.Linear(6, 3), x)
    assert units is not None
    data = ClientData.from_arrays(x, y, np.repeat([3, 1, 2], 4)).in_units(units)
    assert torch.equal(data.client(0)[0], units(x[4:8]))
    first = torch.arange(2)[None] + int(data.starts[0])
    assert torch.equal(data.take(first)[0], units(x[None, 4:6]))
    assert torch.equal(data.features, x)  # no copy: they may lie in a mapped file


@pytest.mark.parametrize(("epsilon", "loss"), [(50.0, cross_entropy), (4.0, "squared")])
def test_a_network_learns_from_centred_inputs_where_noise_is_small_or_targets_have_units(
    epsilon, loss
):
    """With more noise inputs of a usual scale stay as they are, but for a linear model's table."""
    usual = {"scales": torch.ones(6), "means": torch.ones(6)}
    clients, (x, y) = people(**usual), samples(200, 2, **usual)
    given = {"clients": clients, "test": (x, y), "epsilon": epsilon}
    if loss == "squared":
        given |= {
            "clients": [(x, y.float()) for x, y in clients],
            "test": (x, y.float()),
            "loss": lambda outputs, targets: (outputs[:, 0] - targets).square(),
        }
    recipe, task, _ = recipe_for(model=network(), **given)
    assert recipe.standardise
    units = units_of(recipe, task)
    assert torch.equal(units.scale, torch.ones(6))
    assert torch.allclose(units(x).mean(dim=0), torch.zeros(6), atol=1e-5)
    linear, alone, _ = recipe_for(model=nn.Linear(6, 3), **given)
    assert linear.standardise == "always"  # it has the scale, too
    assert torch.allclose(units_of(linear, alone)(x).std(0), torch.ones(6), rtol=0.3)
    assert not recipe_for(model=network(), clients=clients, test=(x, y), epsilon=4.0)[0].standardise


def test_columns_within_limits_are_standardised_for_a_classifier_and_pixels_are_not():
    """With much noise, where inputs of a usual scale would stay."""
    narrow = {"scales": torch.full((6,), 0.05), "means": torch.full((6,), 0.5)}
    clients, test = people(**narrow), samples(200, 2, **narrow)
    given = {"model": network(), "epsilon": 4.0}
    recipe, task, _ = recipe_for(clients=clients, test=test, **given)
    assert recipe.standardise == "always"
    assert float(units_of(recipe, task)(test[0]).std(0).min()) > 0.3  # no scale is below a quarter
    wide = {"scales": torch.full((6,), 0.5), "means": torch.full((6,), 0.5)}
    given |= {"clients": people(**wide), "test": samples(200, 2, **wide)}
    assert not recipe_for(**given)[0].standardise
    pixels = [(torch.rand(5, 64), torch.zeros(5).long())] * 60
    given |= {"clients": pixels, "test": pixels[0], "model": nn.Linear(64, 3)}
    assert not recipe_for(**given)[0].standardise


def test_rare_columns_beside_wide_ones_are_not_made_large():
    """A squared error was 20 times a constant's: a rare 1 became 55, and so did its noise."""
    rng = torch.Generator().manual_seed(0)
    wide = 4.5 * torch.randn(2000, 2, generator=rng)
    rare = (torch.rand(2000, 12, generator=rng) < 0.01).float()
    units = standardised(nn.Linear(14, 1), torch.cat([wide, rare], 1), always=True)
    assert units is not None
    assert (units.scale[2:] == 0.25).all()
    assert torch.allclose(units.scale[:2], torch.full((2,), 4.5), rtol=0.1)
