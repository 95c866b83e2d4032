"""Nothing about one person changes what another person adds to a node's sum."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_strategy import small, task_of
from torch.utils.data import Dataset, TensorDataset

from dpfedls import ClientData, InputError, LazyClients
from dpfedls.clipping import Bound
from dpfedls.engine import choose
from dpfedls.flower.client import Node, make_ask, pack_models
from dpfedls.flower.person import load
from dpfedls.flower.replies import unpack
from dpfedls.people.grouping import choice
from dpfedls.people.losses import cross_entropy
from dpfedls.privacy.clipping import AdaptiveClipping

RECIPE = small("nodes.most_samples=40", "local.epochs=1")
TASK = task_of(RECIPE)
GOOD = {j: TASK.data.client(j) for j in (3, 8, 11)}
X, Y = GOOD[3]
HOSTILE = 5


class Raising(Dataset):
    """Fails when it is read, as a torn file would."""

    def __init__(self, error, length=7):
        self.error, self.length = error, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        raise self.error


class Sly(dict):
    """A mapping that fails for one person only."""

    def __getitem__(self, j):
        if j == HOSTILE:
            raise OSError("this person's disk is gone")
        return super().__getitem__(j)


ENDLESS = (torch.zeros(1, 64).expand(10**12, 64), torch.zeros(1, dtype=torch.long).expand(10**12))
BROKEN = [  # each counts as zero
    None, (None, None), "text", ("a", "b"), (["a"], ["b"]), [], {}, 7, object(), (X,), (X, Y, Y),
    (X[:, :5], Y), (X[None], Y[None]), (X, Y[:-1]), (X, Y + 1000), (X, -Y - 1), (X, Y.float()),
    (X[:0], Y[:0]), (torch.tensor(1.0), torch.tensor(1)), (X.to(torch.complex64), Y),
    (X * float("nan"), Y), (X * float("inf"), Y), ({"a": X}, Y), ((X, X), Y),
    (np.array([object()]), np.array([1])),
    Raising(ValueError("no")), Raising(MemoryError()), Raising(SystemExit(1)),
    Raising(IndexError(), 10**15), Raising(RecursionError()), Raising(KeyError(), 0),
]  # fmt: skip
ODD = [  # each is trained, and counts for one clip norm at most
    (X.double(), Y.int()), (X.half(), Y.to(torch.uint8)), (X.numpy(), Y.numpy()),
    (X.tolist(), Y.tolist()), (X * 1e30, Y), (X * 1e-40, Y), (X[:1], Y[:1]), ENDLESS,
    (X.repeat(50, 1), Y.repeat(50)),
]  # fmt: skip


def node(people):
    return Node.of(RECIPE, TASK.model, people, cross_entropy)


def total(people, key, bound=None):
    bound = bound or Bound(RECIPE.plan.clip_norm)
    holder = node(people)
    params = holder.layout.read(holder.model)
    models = pack_models(params, bound, holder.layout)
    ask = make_ask(0, key, np.array(sorted(people)), models, bound)
    return unpack(holder.train(ask)["update"], holder.layout)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="dpfedls")


@settings(max_examples=33)  # each with every broken person: 1,023 cases
@given(st.integers(0, 2**32), st.lists(st.sampled_from([3, 8, 11])))
def test_the_sum_over_the_others_is_the_same_to_the_last_bit(key, absent):
    others = {j: pair for j, pair in GOOD.items() if j not in absent} or GOOD
    # Someone else must be there with several people, so that both sums travel alike.
    others = others | {40: GOOD[8]}
    alone = total(others, key)
    for hostile in BROKEN:
        assert torch.equal(total(others | {HOSTILE: hostile}, key), alone), repr(hostile)


@pytest.mark.parametrize("i", range(len(ODD)))
def test_odd_people_count_for_one_clip_norm_and_change_nobody_elses(i):
    holder = node(GOOD | {HOSTILE: ODD[i]})
    params, bound = holder.layout.read(holder.model), Bound(RECIPE.plan.clip_norm)
    own = holder._contribution(HOSTILE, params, 0, 9, bound)
    assert float(own.norm()) <= bound.norm
    for j in GOOD:
        alone = node({j: GOOD[j]})._contribution(j, params, 0, 9, bound)
        assert torch.equal(holder._contribution(j, params, 0, 9, bound), alone)
    moved = total(GOOD | {HOSTILE: ODD[i]}, 9) - total(GOOD, 9)
    assert float(moved.norm()) <= bound.norm * (1 + 1e-12)


def test_a_person_without_samples_adds_what_they_add_in_a_simulation():
    """Nothing, to the sum and to the count of updates inside the ball."""
    clipping = AdaptiveClipping(start=0.3, quantile=0.8)
    plan = msgspec.structs.replace(RECIPE.plan, clip_norm=clipping)
    recipe = msgspec.structs.replace(RECIPE, plan=plan)
    bound = Bound(0.3, clipping.indicator(0.3), 0.8)
    told = []
    for people in (GOOD, GOOD | {HOSTILE: (X[:0], Y[:0])}):
        holder = Node.of(recipe, TASK.model, people, cross_entropy)
        params = holder.layout.read(holder.model)
        models = pack_models(params, bound, holder.layout)
        ask = make_ask(0, 5, np.array(sorted(people)), models, bound)
        told.append(holder.train(ask)["about"]["inside"])
    data = ClientData.from_pairs([*GOOD.values(), (X[:0], Y[:0])])
    engine = choose(TASK.model, data, recipe.local, cross_entropy, engine="looped")
    everybody, others = np.arange(len(GOOD) + 1), np.arange(len(GOOD))
    sums = [engine.clipped_total(params, who, 0, 5, bound) for who in (everybody, others)]
    assert told[0] == told[1] != 0
    assert torch.equal(*sums)
    assert float(sums[0][-1]) == pytest.approx(told[0])


def test_no_majority_decides():
    """Five people with int64 labels and six with int32: once, removing one moved all the others."""
    wide = dict.fromkeys(range(5), (X, Y))
    narrow = dict.fromkeys(range(5, 11), (X, Y.int()))
    everybody = wide | narrow
    one_less = {j: pair for j, pair in everybody.items() if j != 10}
    moved = float((total(everybody, 1) - total(one_less, 1)).norm())
    assert 0 < moved <= RECIPE.plan.clip_norm * (1 + 1e-12)


def test_a_mapping_that_fails_for_one_fails_for_that_one():
    assert torch.equal(total(Sly(GOOD | {HOSTILE: (X, Y)}), 2), total(GOOD, 2))


def test_work_is_bounded_before_it_begins():
    """A trillion samples: forty are read, the same forty every time."""
    features, targets = load(ENDLESS, HOSTILE, 40, 0)
    assert len(features) == len(targets) == 40
    numbered = (torch.arange(10**5)[:, None], torch.arange(10**5))
    first, again = (load(numbered, 1, 40, 0)[1] for _ in range(2))
    assert torch.equal(first, again)
    assert len(set(first.tolist())) == 40
    assert not torch.equal(first, load(numbered, 2, 40, 0)[1])


@pytest.mark.parametrize("size", [41, 10**5, 2**22 + 1])
def test_a_node_reads_the_samples_that_a_simulation_reads(size):
    numbered = torch.arange(size)
    owners = torch.ones(size, dtype=torch.int64)
    simulated = ClientData.from_arrays(numbered, numbered, owners, most_samples=40, seed=5)
    deployed = load((numbered, numbered), 1, 40, 5)
    assert torch.equal(simulated.client(0)[1], deployed[1])
    lazy = LazyClients([TensorDataset(numbered, numbered)] * 2, most_samples=40, seed=5)
    assert torch.equal(lazy.client(1)[1], deployed[1])


def test_which_samples_count_is_as_it_was():
    """Results of the tasks by natural people rest on it."""
    assert choice([3, "bo"], 30, 5, seed=7).tolist() == [[1, 7, 12, 20, 25], [2, 4, 5, 6, 16]]


@pytest.mark.parametrize(
    "bound", [Bound(0.3001), Bound(float("inf")), Bound(float("nan")), Bound(0.3, 0.1), Bound(-1)]
)
def test_a_node_refuses_a_bound_above_its_own(bound):
    assert RECIPE.plan.clip_norm == 0.3
    with pytest.raises(InputError, match="this node's recipe allows"):
        total(GOOD, 1, bound)
    total(GOOD, 1, Bound(0.2))
    assert AdaptiveClipping(start=1.0).indicator(0.3) > 0
