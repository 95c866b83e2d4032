"""Votes on whether learning has stalled, on nodes: what travels, what a node refuses, resuming."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Context, Message, RecordDict
from test_strategy import Crash, app_of, small, strategy_of, task_of, watched

from dpfedls import InputError
from dpfedls.clipping import Bound
from dpfedls.flower.client import Node, make_ask, pack_models
from dpfedls.flower.replies import Refused, Request, make_reply, read_update, unpack
from dpfedls.flower.resident import FORK, _receive, _send
from dpfedls.parameters import Layout
from dpfedls.people.losses import cross_entropy
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import Checkpoint

ADAPTIVE = 'plan.clip_norm={kind="adaptive", start=0.3, quantile=0.5}'
# A learning rate 100 times too long: fewer than a tenth say that the model has become better. A
# vote is held where its noise lets it tell: hence so many people, and windows of three rounds.
STALLING = small(
    ADAPTIVE, "local.shorten=16", "local.learning_rate=10", "plan.num_clients=75",
    "plan.rounds=30", "plan.sampler.rate=1.0", "plan.noise_multiplier=0.1", "evaluate_every=30",
)  # fmt: skip
LAST = 14  # the stall is found before that; the rounds after it would show nothing more
TASK = task_of(STALLING)
GOOD = {j: TASK.data.client(j) for j in (3, 8, 11)}
LAYOUT = Layout.of(TASK.model)
EARLIER = torch.zeros(LAYOUT.dim)
INDICATOR = STALLING.plan.clipping.indicator(0.3)


def until(last):
    """A watch that ends a run after this round."""

    def crash(line):
        if line.round == last:
            raise Crash

    return crash


def on_one_node(folder, last):
    """Start or resume up to a round: what is asked in each, and which earlier model it needs."""
    strategy, grid = strategy_of(STALLING, folder), FakeGrid(app_of(STALLING), 1)
    earlier = []
    note = lambda _=None: earlier.append(strategy.server.bound(strategy.run.state).earlier)  # noqa: E731
    note()
    watched(strategy, note)
    watched(strategy, until(last))
    with pytest.raises(Crash):
        strategy.start(grid, timeout=0)
    asked = [m.content for m in grid.sent if m.metadata.message_type == "train"]
    return asked, earlier[: len(asked)]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A run that is not interrupted, and the state at its end."""
    folder = tmp_path_factory.mktemp("deployed") / "r"
    return *on_one_node(folder, LAST), Checkpoint.load(folder)


def assert_same(found, expected, rounding=0.0):
    """Models to the last bit; what is made from sums of answers up to ``rounding``."""
    assert found.round == expected.round
    assert found.clip_norm == pytest.approx(expected.clip_norm, rel=rounding, abs=0)
    assert found.memory.keys() == expected.memory.keys()
    for name, tensor in expected.memory.items():
        near = rounding if name.endswith(".said") else 0.0
        np.testing.assert_allclose(found.memory[name], tensor, rtol=near, atol=0)
    assert np.array_equal(found.params, expected.params)
    assert np.array_equal(found.average, expected.average)


def said(kept):
    """The sum of the shares in this window, how many there were, and whether a stall was found."""
    (found,) = (tensor for name, tensor in kept.memory.items() if name.endswith(".said"))
    return found


def test_votes_and_what_follows_from_them_are_those_of_the_simulation(tmp_path, deployed):
    """Answers are added person by person here, so their sum may differ in its last digit."""
    with pytest.raises(Crash):
        runs.start(STALLING, tmp_path / "r", [until(LAST)])
    simulated = Checkpoint.load(tmp_path / "r")
    assert_same(deployed[-1], simulated, rounding=1e-12)
    assert said(simulated)[2] == 1  # it was found


def test_the_earlier_model_travels_in_rounds_of_a_vote_and_in_no_other(deployed):
    asked, earlier, _ = deployed
    paces = [content["ask"]["pace"] for content in asked]
    found = paces.index(1 / 16)
    assert paces == [1.0] * found + [1 / 16] * (LAST - found)
    votes = [t for t in range(LAST) if earlier[t] is not None]
    assert len(votes) > 1
    assert max(votes) < found
    for t, content in enumerate(asked):
        assert set(content) == ({"ask", "model", "earlier"} if t in votes else {"ask", "model"})
    for t in votes:
        assert torch.equal(unpack(asked[t]["earlier"], LAYOUT), earlier[t])


def test_a_run_goes_on_in_the_middle_of_a_window(tmp_path, deployed):
    """After the first vote, which is not the last round of its window."""
    _, earlier, whole = deployed
    first = next(t for t in range(LAST) if earlier[t] is not None)
    on_one_node(tmp_path / "r", first + 1)
    assert said(Checkpoint.load(tmp_path / "r"))[1] == 1
    on_one_node(tmp_path / "r", LAST)
    assert_same(Checkpoint.load(tmp_path / "r"), whole)


@pytest.mark.parametrize(
    ("inside", "fine"),
    [(1.0, True), (-1.0, True), (1.01, False), (-1.01, False), (float("nan"), False)],
)
def test_a_node_counts_in_a_vote_for_no_more_than_its_people(inside, fine):
    """``inside`` is a part of what two people can add; the model takes no part in it."""
    FakeGrid(app_of(STALLING), 0)  # says which run this is
    question = Message(RecordDict(), dst_node_id=100, message_type="train")
    question.metadata.__dict__["_message_id"] = "q"
    bound = Bound(0.3, INDICATOR, earlier=EARLIER)
    total = torch.cat([EARLIER.double(), torch.tensor([inside * INDICATOR], dtype=torch.float64)])
    reply = Message(make_reply(total, LAYOUT, 4), reply_to=question)
    if fine:
        assert torch.equal(read_update(reply, Request(100, 4, 2), LAYOUT, bound), total)
    else:
        with pytest.raises(Refused, match="its count of people who say yes"):
            read_update(reply, Request(100, 4, 2), LAYOUT, bound)


def ask(holder, people, bound):
    params = holder.layout.read(holder.model)
    models = pack_models(params, bound, LAYOUT)
    return make_ask(3, 5, np.array(sorted(people)), models, bound)


def node(people, *settings, loss=cross_entropy):
    recipe = small("plan.num_clients=40", *settings)
    return Node.of(recipe, TASK.model, people, loss)


@pytest.mark.parametrize(
    ("settings", "bound", "why"),
    [
        ([ADAPTIVE], Bound(0.3, INDICATOR, pace=1 / 16), "learning rates times 0.0625"),
        ([ADAPTIVE, "local.shorten=8"], Bound(0.3, INDICATOR, pace=1 / 16), "allows 1 or 0.125"),
        ([ADAPTIVE, "local.shorten=16"], Bound(0.3, INDICATOR, pace=16), "allows 1 or 0.0625"),
        ([ADAPTIVE, "local.shorten=16"], Bound(0.3, INDICATOR, pace=float("nan")), "times nan"),
        ([ADAPTIVE], Bound(0.3, INDICATOR, earlier=EARLIER), "has no such vote"),
        ([], Bound(0.3, earlier=EARLIER), "has no such vote"),
    ],
)
def test_a_node_refuses_what_its_own_recipe_does_not_ask_for(settings, bound, why):
    holder = node(GOOD, *settings)
    with pytest.raises(InputError, match=f"the server asks .*{why}.* on both sides") as error:
        holder.train(ask(holder, GOOD, bound))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("which", ["model", "earlier"])
def test_both_models_are_checked_alike(which):
    holder = node(GOOD, ADAPTIVE, "local.shorten=16")
    asked = ask(holder, GOOD, Bound(0.3, INDICATOR, earlier=EARLIER))
    holder.train(asked)
    asked[which]["weight"].shape = (64, 4)
    with pytest.raises(Refused, match="has shape"):
        holder.train(asked)


def test_a_question_of_two_models_reaches_the_worker_as_it_was_sent():
    """Also of one model twice, whose pieces Flower sends once."""
    FakeGrid(app_of(STALLING), 0)  # says which run this is
    holder = node(GOOD, ADAPTIVE, "local.shorten=16")
    same = holder.layout.read(holder.model)
    for earlier in (EARLIER, same):
        content = ask(holder, GOOD, Bound(0.3, INDICATOR, earlier=earlier))
        context = Context(1, 100, {}, RecordDict(), {})
        ours, theirs = FORK.Pipe()
        _send(ours, Message(content, dst_node_id=100, message_type="train"), context)
        received, _ = _receive(theirs)
        assert torch.equal(unpack(received.content["earlier"], LAYOUT), earlier)
        assert torch.equal(unpack(received.content["model"], LAYOUT), same)


def picky(outputs, targets):
    """Fails on 13 samples at once: not in training, whose batches have 5, but in a vote."""
    if len(targets) == 13:
        raise ValueError("thirteen")
    return cross_entropy(outputs, targets)


def test_whose_losses_cannot_be_computed_counts_as_zero_alone(caplog):
    features, targets = GOOD[3]
    everybody = GOOD | {5: (features.repeat(2, 1)[:13], targets.repeat(2)[:13])}
    settings = (ADAPTIVE, "local.shorten=16")
    for earlier in (None, EARLIER):
        bound = Bound(0.3, INDICATOR, earlier=earlier)
        holders = [node(people, *settings, loss=picky) for people in (everybody, GOOD)]
        with caplog.at_level(logging.WARNING, "dpfedls"):
            told = [holder.train(ask(holder, holder.people, bound)) for holder in holders]
        counts = told[0].object_id != told[1].object_id
        assert counts == (earlier is None)
        assert ("person 5 counts as zero: ValueError: thirteen" in caplog.text) != counts
