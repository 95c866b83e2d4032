"""Runs whose first rounds ask for the units of inputs, and when ε alone asks."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
import torch
from raw_people import ASKS, SCALES, network, people, plan
from torch import nn
from torch.utils.data import Dataset

import dpfedls
from dpfedls import InputError, LocalSGD
from dpfedls.auto.inputs import Usual, is_fresh, measuring
from dpfedls.denoising import Identity
from dpfedls.people.clients import ClientData
from dpfedls.people.survey import Measured
from dpfedls.people.units import unmeasured
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.observers import Nodes
from dpfedls.runs.simulate import prepare
from dpfedls.runs.train import recipe_for
from dpfedls.runs.verify import verify


def trained(clients, **given):
    given = {"model": network(), "standardise": ASKS} | given
    if "plan" not in given:
        given["plan"] = plan(len(clients))
    return dpfedls.train(clients=clients, local=LocalSGD(steps=3, learning_rate=0.05), **given)


@pytest.mark.parametrize("engine", ["looped", "vmapped", "compiled"])
def test_once_units_are_found_the_run_is_the_one_on_inputs_standardised_by_hand(engine):
    """The model that is handed out takes inputs as they are, and does what the other one does."""
    clients = people()
    result = trained(clients, engine=engine)
    recipe, task, _ = recipe_for(
        model=network(), clients=clients, plan=plan(), standardise=ASKS,
        local=LocalSGD(steps=3, learning_rate=0.05), engine=engine,
    )  # fmt: skip
    simulation, model = prepare(recipe, task, Identity())
    server = simulation.server
    state = server.start(server.layout.read(model))
    while server.bound(state).question is not None:
        state = simulation.run_round(state)
    assert state.round == state.asked == 11
    units = server.units(state)
    by_hand = [(units(x), y) for x, y in clients]
    recipe, task, _ = recipe_for(
        model=network(), clients=by_hand, plan=plan(), engine=engine,
        local=LocalSGD(steps=3, learning_rate=0.05),
    )  # fmt: skip
    other, model = prepare(recipe, task, Identity())
    plain = dataclasses.replace(
        other.server.start(other.server.layout.read(model)),
        round=11,
        clip_norm=state.clip_norm,
        survey={"rounds": torch.full((1,), 11.0)},
    )
    *_, last = other.run(plain)
    x = torch.cat([x for x, _ in clients])
    other.server.layout.write(last.params, model)
    assert torch.allclose(result.model(x), model(units(x)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("stop", [1, 5, 11, 12])
def test_a_run_goes_on_after_a_crash_in_the_middle_of_the_questions(stop, tmp_path):
    clients, folder = people(60), tmp_path / "run"

    def crash(line):
        if line.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(clients, folder=folder, watch=[crash])
    again = trained(clients, folder=folder)
    once = trained(clients, folder=tmp_path / "once")
    for one, other in zip(again.model.parameters(), once.model.parameters(), strict=True):
        assert torch.equal(one, other)
    found = verify(folder)
    assert found["valid"], found
    assert again.epsilon == once.epsilon == again.plan.epsilon()


def test_epsilon_and_payments_are_those_of_the_plan_whatever_is_asked(tmp_path):
    clients = people(60)
    asking = trained(clients, folder=tmp_path / "one")
    not_asking = trained(clients, folder=tmp_path / "two", standardise=False)
    assert asking.epsilon == not_asking.epsilon
    assert [entry.round for entry in read_ledger(tmp_path / "one" / "ledger.sqlite").entries] == [
        *range(14)
    ]


class Loaded(Dataset):
    """Somebody's samples, loaded one by one; whose file is gone has a length and nothing else."""

    def __init__(self, pair, gone=False):
        self.pair, self.gone = pair, gone

    def __len__(self):
        return len(self.pair[1])

    def __getitem__(self, i):
        if self.gone:
            raise OSError("no such file")
        return self.pair[0][i], self.pair[1][i]


def test_people_who_are_loaded_answer_too_and_who_cannot_be_counts_as_nobody(tmp_path):
    clients = people(60)
    in_memory = trained(clients)
    loaded = trained([Loaded(pair) for pair in clients])
    x = torch.cat([x for x, _ in clients])
    assert torch.allclose(loaded.model(x), in_memory.model(x), rtol=1e-3, atol=1e-3)
    everyone = [Loaded(pair, gone=k in (7, 8)) for k, pair in enumerate(clients)]
    missing = dpfedls.LazyClients(everyone, like=clients[0])
    result = trained(missing, plan=plan(60), folder=tmp_path / "run", mode="deployed")
    assert torch.isfinite(result.model(x)).all()
    assert len(result.history) == 14


def test_a_person_who_is_loaded_and_has_nothing_stops_no_convolution():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(32, 3))
    given = [(255 * torch.rand(5, 1, 4, 4), torch.zeros(5).long()) for _ in range(30)]
    lazy = [Loaded(pair) for pair in given] + [Loaded((torch.empty(0, 1, 4, 4), torch.zeros(0)))]
    trained(lazy, plan=plan(31), model=model)


def test_a_raw_table_is_learned_by_epsilon_alone():
    clients, held = people(1000), people(50, seed=2)
    x, y = (torch.cat(part) for part in zip(*held, strict=True))
    accuracy = {}
    for measured in (None, False):
        given = {} if measured is None else {"standardise": measured}
        result = dpfedls.train(network(), clients, epsilon=4.0, **given)
        assert result.epsilon <= 4.0
        accuracy[measured] = float((result.model(x).argmax(1) == y).float().mean())
    assert accuracy[None] > 0.85
    assert accuracy[None] > accuracy[False] + 0.1


KEEP = Usual("keep")


def wanted(people_=1000, epsilon=1.0, columns=20, **given):
    clients = [(torch.zeros(1, columns), torch.zeros(1).long())] * people_
    given = {"model": network(columns)} | given
    recipe, _, _ = recipe_for(clients=clients, epsilon=epsilon, **given)
    return recipe


def test_how_many_rounds_ask_follows_noise_and_columns():
    few, many = wanted().standardise, wanted(columns=100).standardise
    assert isinstance(few, Measured)
    assert few.columns
    assert few.first == 1
    assert few.sizes < 0.2 * wanted().plan.rounds
    assert few.within
    assert not wanted(columns=60).standardise.within  # a quarter of the rounds would ask
    assert not many.columns
    assert many.later == 0
    assert wanted(20_000, 8.0, 100).standardise == Measured(first=1, sizes=1, later=1, centre=True)
    assert wanted(20_000, 8.0, 50).standardise.within
    many_people = {"model": nn.Linear(20, 3), "people_": 20_000}
    assert wanted(**many_people).standardise.scale  # of a linear model, as hardly any round asks
    assert not wanted(model=nn.Linear(20, 3)).standardise.scale
    with_test = wanted(test=(torch.randn(20, 20), torch.zeros(20).long()))
    assert with_test.standardise is False
    assert wanted(local=LocalSGD(steps=5)).standardise is False


def test_nobody_is_asked_where_the_model_cannot_take_units_in_or_has_learned():
    given = plan(1000, 400, 0.5)
    like = torch.randn(1, 6)
    assert measuring(given, network(), like, KEEP)[0] is not None
    assert measuring(given, nn.Sequential(nn.LayerNorm(6), network()), like, KEEP)[0] is None
    assert measuring(given, network(), like.long(), False)[0] is None
    learned = network()
    with torch.no_grad():
        learned[0].weight /= SCALES
    units = unmeasured(learned, like)
    assert units is not None
    assert not is_fresh(learned, units)
    assert measuring(given, learned, like, KEEP)[0] is None
    noisy, why = measuring(plan(1000, 100, 500.0), network(), like, KEEP)
    assert noisy is None
    assert "too much noise" in why


@pytest.mark.parametrize(("rounds", "noise"), [(100, 40.0), (400, 2.0)])
def test_means_of_usual_columns_are_asked_for_at_once_where_sizes_would_take_many_rounds(
    rounds, noise
):
    given = plan(1000, rounds, noise)
    found, why = measuring(given, network(), torch.randn(1, 6), Usual("centre"))
    assert found is not None
    assert found.at_once == (found.sizes > 0.05 * rounds) == (rounds == 100)
    most = 2 * found.later if found.at_once else found.sizes + found.later
    assert f"if so, up to {most} for the mean alone" in why
    standardised, _ = measuring(given, network(), torch.randn(1, 6), Usual("standardise"))
    assert standardised is not None
    assert not standardised.at_once


def test_a_network_that_has_learned_is_left_alone():
    clients = people(300, scales=torch.ones(6), means=torch.zeros(6))
    x, y = (torch.cat(part) for part in zip(*clients, strict=True))
    model = network()
    steps = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(200):
        steps.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        steps.step()
    found, why = measuring(plan(1000, 400, 0.5), model, x[:1], KEEP)
    assert found is None
    assert "learned already" in why
    ordered = network()  # columns of one size, and a direction in common
    with torch.no_grad():
        ordered[0].weight += torch.linspace(-1, 1, 12)[:, None]
    assert measuring(plan(1000, 400, 0.5), ordered, x[:1], KEEP)[0] is None
    for seed in range(20):
        for fresh in (nn.Linear(6, 2), nn.Linear(40, 64), nn.Conv2d(3, 16, 5), nn.Linear(784, 10)):
            torch.manual_seed(seed)
            fresh.reset_parameters()
            images = isinstance(fresh, nn.Conv2d)
            shape = (1, 3, 8, 8) if images else (1, fresh.in_features)
            units = unmeasured(fresh, torch.randn(shape))
            assert units is not None
            assert is_fresh(fresh, units)


def test_people_vote_and_average_only_over_rounds_that_train():
    clients = people(400, each=2)
    given = {"plan": plan(400, 60, 0.3), "standardise": Measured(first=10, sizes=10, later=5)}
    local = LocalSGD(steps=2, learning_rate=0.05, shorten=4.0)
    recipe, task, _ = recipe_for(model=network(), clients=clients, local=local, **given)
    simulation, model = prepare(recipe, task, Identity())
    server = simulation.server
    votes, state = [], None
    for state in simulation.run(server.start(server.layout.read(model))):
        if server.bound(state).earlier is not None:
            votes.append(state.round - state.asked)
    assert state is not None
    assert state.asked == 40
    assert votes == [t for t in range(12, 20) if t % 2]


def test_averages_and_the_falling_rate_count_rounds_that_train():
    recipe, task, _ = recipe_for(
        model=network(), clients=people(60), plan=plan(60, 14), standardise=ASKS, averaging=1.0,
        schedule="linear", local=LocalSGD(steps=3, learning_rate=0.05),
    )  # fmt: skip
    simulation, model = prepare(recipe, task, Identity())
    server = simulation.server
    states = list(simulation.run(server.start(server.layout.read(model))))
    folded, one = (next(s for s in states if s.round == t) for t in (11, 12))
    assert folded.asked == one.asked == 11
    assert torch.equal(folded.average, folded.params)
    assert torch.allclose(one.average, (folded.params + one.params) / 2)
    steps = [server.step(state) for state in states[10:13]]
    assert steps == pytest.approx([1.0, 2 / 3, 1 / 3])


def test_rates_do_not_follow_public_inputs_that_nobody_trains_on():
    clients = people(60)
    given = {"model": nn.Linear(6, 3), "clients": clients, "epsilon": 8.0, "standardise": ASKS}
    with_test, _, _ = recipe_for(**given, test=clients[0])
    without, _, _ = recipe_for(**given)
    assert with_test.local == without.local


def test_a_shorter_plan_asks_in_fewer_rounds():
    def poisson(outputs, targets):
        return outputs[:, 0].exp() - targets * outputs[:, 0]

    clients = ClientData.from_arrays(torch.zeros(5000, 200), torch.zeros(5000), range(5000))
    recipe, _, _ = recipe_for(model=network(200), clients=clients, epsilon=0.5, loss=poisson)
    asks = recipe.standardise
    assert recipe.plan.rounds == 100
    assert isinstance(asks, Measured)
    assert asks.first + asks.sizes + 4 * asks.later <= 0.45 * recipe.plan.rounds


def test_what_is_asked_and_found_stands_in_the_recipe_and_comes_back(tmp_path):
    clients = people(200)
    result = dpfedls.train(network(), clients, epsilon=8.0, folder=tmp_path / "run")
    assert isinstance(result.recipe.standardise, Measured)
    assert "whether inputs are around 1" in result.recipe.chosen["standardise"]
    again = dpfedls.train(network(), clients, epsilon=8.0, folder=tmp_path / "run")
    assert again.recipe.standardise == result.recipe.standardise


def test_a_linear_model_of_targets_with_units_asks_for_means_and_scales_if_it_has_a_bias():
    def squared(outputs, targets):
        return (outputs[:, 0] - targets).square()

    clients = [(x, x.sum(1)) for x, _ in people(200)]
    chosen = {}
    for bias in (True, False):
        given = {"model": nn.Linear(6, 1, bias=bias), "clients": clients, "loss": squared}
        recipe, _, _ = recipe_for(**given, epsilon=8.0)
        chosen[bias] = recipe.standardise, "in any case" in recipe.chosen["standardise"]
    assert (chosen[True][0].centre, chosen[True][0].scale, chosen[True][1]) == (True, True, True)
    assert (chosen[False][0].scale, chosen[False][1]) == (False, False)


def test_wrong_wishes_are_refused_in_one_line():
    with pytest.raises(InputError, match=r"standardise\.first must be"):
        Measured(first=0, sizes=1)
    for usual in ({"centre": True, "later": 0}, {"scale": True, "later": 1, "columns": False}):
        with pytest.raises(InputError, match="asks for means, of each column"):
            Measured(first=1, sizes=1, **usual)
    for usual in ({"centre": False}, {"centre": True, "scale": True}):
        with pytest.raises(InputError, match="means of usual inputs alone"):
            Measured(first=1, sizes=1, later=1, at_once=True, **usual)
    with pytest.raises(InputError, match="first layer"):
        trained(people(20), plan=plan(20), model=nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)))
    with pytest.raises(InputError, match="leaves none to train"):
        trained(people(20), plan=plan(20, 11))
    with pytest.raises(InputError, match="finite clip_norm"):
        trained(people(20), plan=plan(20, noise=0.0, clip_norm=math.inf))
    recipe, _, _ = recipe_for(model=network(), clients=people(20), plan=plan(20), standardise=ASKS)
    with pytest.raises(InputError, match="nodes"):
        msgspec.structs.replace(recipe, nodes=Nodes())


def test_the_learning_rate_decays_with_rounds_that_train_alone():
    """With rounds that ask counted in, the first one that trains would have a rate of 1e-30."""
    clients, start = people(60), network()
    decays = LocalSGD(steps=3, learning_rate=0.05, decay=1e-6)
    fixed = plan(60, noise=1e-9, clip_norm=1.0)  # no round is skipped
    given = {"plan": fixed, "standardise": ASKS, "local": decays}
    result = dpfedls.train(model=start, clients=clients, **given)
    before, after = (dict(model.named_parameters()) for model in (start, result.model))
    last = list(before)[-1]  # not part of the first layer, which takes the units in
    assert (after[last] - before[last]).norm() > 1e-3
