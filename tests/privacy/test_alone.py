"""What one person brings changes nobody else's part: not by stacking, votes, shapes or errors."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfedls
from dpfedls import InputError
from dpfedls.clipping import Bound
from dpfedls.engine import choose
from dpfedls.engine.judging import MOST, mean_losses
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.lazy import LazyClients
from dpfedls.people.survey import Measured
from dpfedls.runs.train import recipe_for

ADAPTIVE = {"kind": "adaptive"}


def plan(people, rounds=4, **changes):
    return dpfedls.PrivacyPlan(
        sampler=dpfedls.PoissonSampling(rate=0.5),
        num_clients=people,
        rounds=rounds,
        noise_multiplier=0.5,
        **{"clip_norm": 1.0} | changes,
    )


class BytesOrFractions(nn.Module):
    """Images in bytes are divided by 255, fractions are taken as they are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x if x.is_floating_point() else x.float() / 255)


def images(count, rng):
    return torch.randint(256, (count, 8), generator=rng), torch.randint(3, (count,), generator=rng)


def test_fractions_of_one_person_leave_the_whole_numbers_of_others_as_they_are():
    """Stacked together torch would make fractions of all: the sum moved by 17 clip norms."""
    rng, model = torch.Generator().manual_seed(0), BytesOrFractions()
    pairs = [images(5, rng) for _ in range(31)]
    pairs[-1] = (pairs[-1][0] / 255, pairs[-1][1])
    data = LazyClients([TensorDataset(*own) for own in pairs])
    local = LocalSGD(epochs=1, batch_size=5, learning_rate=1.0)
    engine = replace(choose(model, data, local, engine="vmapped"), failing="zero")
    params, bound = Layout.of(model).read(model), Bound(0.05)
    everyone, others = (
        engine.clipped_total(params, np.arange(people), 0, 7, bound) for people in (31, 30)
    )
    assert 0 < float((everyone - others).norm()) <= 0.05 * (1 + 1e-5)  # alone and together round
    with pytest.raises(InputError, match=r"clients\[30\] has .*float32.*clients\[0\] .*int64"):
        replace(engine, failing="stop").clipped_total(params, np.arange(31), 0, 7, bound)


class Centred(nn.Module):
    """Takes the mean of the batch away, and keeps it to be looked at."""

    def __init__(self):
        super().__init__()
        self.layer, self.mean = nn.Linear(4, 2), None

    def forward(self, x):
        self.mean = x.mean(0)
        return self.layer(x - self.mean)


def balanced(outputs, targets):
    """Cross-entropy in which every class of the batch counts the same."""
    counts = torch.bincount(targets, minlength=2).clamp(min=1)
    return nn.functional.cross_entropy(outputs, targets, reduction="none") / counts[targets]


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("model", "loss"), [(Centred(), cross_entropy), (nn.Linear(4, 2), balanced)]
)
def test_a_person_votes_by_their_own_samples_whoever_else_is_asked(model, loss):
    """As one batch, a person with values of 3e38 turned every vote of 200 others."""
    rng = torch.Generator().manual_seed(1)
    pairs = [(torch.randn(6, 4, generator=rng), torch.randint(2, (6,))) for _ in range(20)]
    pairs.append((torch.full((6, 4), 3e38), torch.zeros(6).long()))
    pairs.append((torch.zeros(0, 4), torch.zeros(0).long()))
    layout, data = Layout.of(model), ClientData.from_pairs(pairs)
    update = VmappedUpdate(model, loss, layout, data, LocalSGD(steps=1))
    params = layout.read(model)
    together = mean_losses(update, True, params, np.arange(22))
    alone = [mean_losses(update, True, params, np.array([j])) for j in range(22)]
    assert torch.equal(together.nan_to_num(), torch.cat(alone).nan_to_num())
    own = [loss(model(x), y).mean() for x, y in pairs[:20]]
    torch.testing.assert_close(together[:20], torch.stack(own))
    assert together[21].isnan()


def test_who_has_many_samples_votes_by_the_first_hundred():
    x, y = torch.randn(MOST + 50, 4), torch.randint(2, (MOST + 50,))
    model = nn.Linear(4, 2)
    data = ClientData.from_pairs([(x, y)])
    update = VmappedUpdate(model, cross_entropy, Layout.of(model), data, LocalSGD(steps=1))
    found = mean_losses(update, False, update.layout.read(model), np.array([0]))
    torch.testing.assert_close(found[0], cross_entropy(model(x), y)[:MOST].mean().detach())


@pytest.mark.parametrize("engine", ["auto", "looped"])
def test_the_model_that_is_handed_out_holds_nothing_it_saw_of_people(engine):
    people = [(torch.randn(3, 4) + 7, torch.randint(2, (3,))) for _ in range(300)]
    clip = dpfedls.AdaptiveClipping()
    result = dpfedls.train(
        Centred(),
        people,
        plan=plan(300, 10, clip_norm=clip),
        local=LocalSGD(epochs=1, shorten=16.0),
        engine=engine,
    )
    assert result.model.mean is None


@pytest.mark.parametrize("most", [3, 3000])
def test_which_engine_trains_hangs_on_nobodys_number_of_samples(most):
    people = [(torch.randn(n, 4), torch.randint(2, (n,))) for n in (1, most)]
    data, wide = (
        ClientData.from_pairs(people),
        nn.Sequential(nn.Linear(4, 2**10), nn.Linear(2**10, 2)),
    )
    engine = choose(wide, data, LocalSGD(epochs=1, batch_size=2**21))
    assert "not compiled: a batch may have more numbers in one layer" in engine.reason


class Texts(Dataset):
    def __init__(self, length):
        rng = torch.Generator().manual_seed(length)
        self.x = torch.randint(50, (4, length), generator=rng)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i % 2


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.layer(self.words(x).sum(1))


@pytest.mark.parametrize("how", ["like", "test"])
def test_what_is_chosen_hangs_on_the_public_shape_and_not_on_a_persons(how):
    """The first person's length of texts set the learning rate of everybody."""
    torch.manual_seed(0)
    public, model, chosen = (torch.zeros(3, 20).long(), torch.zeros(3).long()), Bag(), []
    for length in (20, 500):
        sets = [Texts(length), *(Texts(20) for _ in range(1999))]
        given = {"like": public} if how == "like" else {}
        clients = LazyClients(sets, **given)
        test = public if how == "test" else None
        recipe, _, _ = recipe_for(
            model=model, clients=clients, epsilon=8.0, test=test, mode="deployed"
        )
        chosen.append((recipe.local, recipe.server_rate, recipe.chosen))
    assert chosen[0] == chosen[1]


def test_a_deployed_run_looks_at_nobody_for_the_shape(tmp_path):
    clients = LazyClients([Texts(20)] * 300)
    with pytest.raises(InputError, match=r"may look at nobody.*LazyClients\(…, like="):
        dpfedls.train(Bag(), clients, plan=plan(300), mode="deployed", folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


class Panic(BaseException):
    """As extensions in Rust raise it."""


class Person(Dataset):
    """Raises what the class variable ``broken`` says for the person of that number."""

    broken: dict = {}  # noqa: RUF012 - changed while a run goes on

    def __init__(self, number):
        self.number, rng = number, torch.Generator().manual_seed(number)
        self.x = 1000 + 300 * torch.randn(3, 2, generator=rng)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if self.number in self.broken:
            raise self.broken[self.number]
        return self.x[i], int(self.x[i, 0] > 1000)


def test_errors_of_any_kind_count_as_zero_also_when_units_are_found(tmp_path, monkeypatch):
    """One stopped the run in the round in which that person was drawn, and so told of it."""
    monkeypatch.setattr(Person, "broken", {29: Panic("unwrap on None")})
    like = torch.zeros(1, 2), torch.zeros(1).long()

    def breaks(line):
        if line.round == 2:  # the next round finds the units, and chooses its engine again
            gone = {j: OSError(f"disk of person {j} is gone") for j in range(8)}
            monkeypatch.setattr(Person, "broken", gone)

    result = dpfedls.train(
        nn.Linear(2, 2),
        LazyClients([Person(j) for j in range(60)], like=like),
        plan=plan(60, 12, clip_norm=dpfedls.AdaptiveClipping()),
        local=LocalSGD(epochs=1),
        standardise=Measured(first=1, sizes=2, later=1, centre=True),
        mode="deployed",
        folder=tmp_path / "run",
        watch=[breaks],
    )
    assert len(result.history) == 12


def test_nobody_with_a_sample_is_said_in_one_line_by_epsilon_alone_too():
    nobody = [(torch.zeros(0, 2), torch.zeros(0).long())] * 300
    with pytest.raises(InputError, match="clients hold no samples; give at least one"):
        dpfedls.train(nn.Linear(2, 2), nobody, epsilon=8.0)


class Warns(Texts):
    """Texts of which one person's loader warns."""

    def __init__(self, number):
        super().__init__(20)
        self.number = number

    def __getitem__(self, i):
        if self.number == 15:
            warnings.warn("an old format", UserWarning, stacklevel=1)
        return super().__getitem__(i)


@pytest.mark.parametrize("failing", ["zero", "stop"])
def test_a_deployed_round_says_no_warning_that_would_tell_who_was_drawn(failing, recwarn):
    like = torch.zeros(2, 20).long(), torch.zeros(2).long()
    data = LazyClients([Warns(j) for j in range(20)], like=like)
    engine = replace(choose(model := Bag(), data, LocalSGD(epochs=1)), failing=failing)
    engine.clipped_total(Layout.of(model).read(model), np.arange(20), 0, 7, Bound(1.0))
    said = "an old format" in [str(warning.message) for warning in recwarn]
    assert said == (failing == "stop")  # a simulation says it
