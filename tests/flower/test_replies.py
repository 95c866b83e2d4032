"""What a broken or hostile node can send, and that it moves nothing."""

from __future__ import annotations

import io
import math
import resource

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from test_strategy import app_of, close, small, strategy_of, task_of

from dpfedls.clipping import Bound
from dpfedls.flower.replies import (
    STYPE,
    Refused,
    Request,
    make_census,
    make_reply,
    pack,
    read_census,
    read_update,
    unpack,
)
from dpfedls.parameters import Layout
from dpfedls.privacy.account import read_ledger
from dpfedls.runs.verify import verify

LAYOUT = Layout(("bias", "weight"), ((3,), (3, 2)))
ONE = Request(node=100, round=4, people=1)
BOUND = Bound(0.5)


@pytest.fixture
def question():
    FakeGrid(None, 0)  # type: ignore[arg-type]  # says which run this is
    message = Message(RecordDict(), dst_node_id=100, message_type="train")
    message.metadata.__dict__["_message_id"] = "q"
    return message


def answer(question, content):
    return Message(content, reply_to=question)


def raw(values, dtype="<f4", shape=None, name="float32", stype=STYPE):
    array = np.asarray(values, dtype=dtype)
    return Array(name, tuple(array.shape if shape is None else shape), stype, array.tobytes())


def content(**changes):
    """A good reply, with tensors, records or the round changed."""
    arrays = {"bias": raw(np.full(3, 0.1)), "weight": raw(np.full((3, 2), 0.1))}
    about = ConfigRecord({"round": changes.pop("round_", 4)})
    arrays |= {k: v for k, v in changes.items() if isinstance(v, Array)}
    extra = {k: v for k, v in changes.items() if not isinstance(v, Array)}
    return RecordDict({"update": ArrayRecord(arrays), "about": about, **extra})


def huge_header():
    """A real .npy header of a few bytes that asks for eight terabytes."""
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_2_0(buffer, header)
    return buffer.getvalue()


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    return buffer.getvalue()


WRONG = {
    "NaN": content(bias=raw([0, math.nan, 0])),
    "infinity": content(bias=raw([0, math.inf, 0])),
    "overflowing norm": content(
        bias=raw([1e308] * 3, "<f8", name="float64"),
        weight=raw([[1e308] * 2] * 3, "<f8", name="float64"),
    ),
    "huge norm": content(bias=raw([1e30, 0, 0])),
    "norm a little too large": content(bias=raw([0.51, 0, 0]), weight=raw(np.zeros((3, 2)))),
    "another shape": content(weight=raw(np.zeros((2, 3)))),
    "a shape of terabytes": content(weight=raw(np.zeros(6), shape=(10**12, 10**3))),
    "negative shape": content(weight=raw(np.zeros(6), shape=(-3, -2))),
    "no shape": content(weight=raw(np.zeros(6), shape=())),
    "too few bytes": content(weight=raw(np.zeros(5), shape=(3, 2))),
    "too many bytes": content(weight=raw(np.zeros(7), shape=(3, 2))),
    "no bytes": content(weight=Array("float32", (3, 2), STYPE, b"")),
    "a header of terabytes": content(
        weight=Array("float32", (3, 2), "numpy.ndarray", huge_header())
    ),
    "that header as raw": content(weight=Array("float32", (3, 2), STYPE, huge_header())),
    "a pickle": content(weight=Array("object", (3, 2), "numpy.ndarray", pickled())),
    "object dtype": content(weight=Array("object", (3, 2), STYPE, bytes(48))),
    "float16": content(weight=raw(np.zeros((3, 2)), "<f2", name="float16")),
    "dtype that lies": content(weight=raw(np.zeros((3, 2)), "<f8", name="float32")),
    "mixed dtypes": content(weight=raw(np.zeros((3, 2)), "<f8", name="float64")),
    "an extra tensor": content(other=raw(np.zeros(1))),
    "a missing tensor": RecordDict(
        {"update": ArrayRecord({"bias": raw(np.zeros(3))}), "about": ConfigRecord({"round": 4})}
    ),
    "an earlier round": content(round_=3),
    "a later round": content(round_=5),
    "a round that is no number": content(round_="4"),
    "a round that is nearly one": content(round_=4.0),
    "metrics": content(metrics=MetricRecord({"loss": 0.3})),
    "more about itself": RecordDict(
        {
            "update": content()["update"],
            "about": ConfigRecord({"round": 4, "num-examples": 10**9}),
        }
    ),
    "no round": RecordDict({"update": content()["update"], "about": ConfigRecord()}),
    "records exchanged": RecordDict({"about": content()["update"], "update": ConfigRecord()}),
    "nothing": RecordDict(),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_reply_is_refused_with_its_cause(question, what):
    with pytest.raises(Refused) as refused:
        read_update(answer(question, WRONG[what]), ONE, LAYOUT, BOUND)
    assert 10 < len(str(refused.value)) < 200


def test_a_good_reply_is_read(question):
    update = read_update(answer(question, content()), ONE, LAYOUT, BOUND)
    assert update.dtype == torch.float64
    assert torch.allclose(update, torch.full((9,), 0.1, dtype=torch.float64))


def test_the_bound_on_a_sum_is_the_clip_norm_for_each_person(question):
    wide = content(bias=raw([1.4, 0, 0]), weight=raw(np.zeros((3, 2))))
    assert (
        float(read_update(answer(question, wide), Request(100, 4, 3), LAYOUT, BOUND).norm()) <= 1.5
    )
    with pytest.raises(Refused, match=r"norm is 1\.4, but the bound is 1"):
        read_update(answer(question, wide), Request(100, 4, 2), LAYOUT, BOUND)


def test_a_norm_beyond_the_bound_by_rounding_is_clipped_again(question):
    nearly = content(bias=raw([0.5 + 1e-7, 0, 0]), weight=raw(np.zeros((3, 2))))
    assert float(read_update(answer(question, nearly), ONE, LAYOUT, BOUND).norm()) <= 0.5


def test_a_reply_from_another_node_or_with_an_error_is_refused(question):
    with pytest.raises(Refused, match="comes from node 100"):
        read_update(answer(question, content()), Request(101, 4, 1), LAYOUT, BOUND)
    error = Message(Error(7, "patient 17 has diabetes"), reply_to=question)
    with pytest.raises(Refused, match="reported error 7") as refused:
        read_update(error, ONE, LAYOUT, BOUND)
    assert "diabetes" not in str(refused.value)


@given(st.binary(max_size=80), st.lists(st.integers(-1, 10**13), max_size=4), st.text(max_size=8))
def test_no_header_allocates_what_it_asks_for(data, shape, dtype):
    """Whatever the header says, reading it takes no more memory than its bytes did."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    array = Array(dtype or "float32", tuple(shape), STYPE, data)
    with pytest.raises(Refused):
        unpack(ArrayRecord({"bias": array, "weight": array}), LAYOUT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=9, max_size=9))
def test_what_is_packed_is_unpacked_exactly(values):
    for dtype in (torch.float32, torch.float64):
        vector = torch.tensor(values, dtype=dtype)
        assert torch.equal(unpack(pack(vector, LAYOUT), LAYOUT), vector)


@pytest.mark.parametrize(
    "people",
    [b"123", bytes(8 * 11), np.array([0, 0]).tobytes(), np.array([-1]).tobytes(),
     np.array([10]).tobytes(), [1, 2], "all"],
)  # fmt: skip
def test_a_wrong_census_is_refused(question, people):
    about = RecordDict({"about": ConfigRecord({"people": people})})
    with pytest.raises(Refused):
        read_census(answer(question, about), 100, 10)


def test_a_good_census_is_read(question):
    found = read_census(answer(question, make_census(np.array([3, 9]))), 100, 10)
    assert found.tolist() == [3, 9]


# ── What it does to a round ──────────────────────────────────────────────────────────────────────

LINEAR = Layout(("weight", "bias"), ((4, 64), (4,)))


def poison(question, reply):
    return [make_and(reply, torch.full((260,), math.nan))]


def make_and(reply, vector, round_=None):
    asked = reply.content["about"]["round"] if round_ is None else round_
    spoiled = Message(make_reply(vector, LINEAR, asked), reply_to=reply)
    spoiled.metadata.__dict__.update(reply.metadata.__dict__)
    return spoiled


def from_another(question, reply):
    reply.metadata.__dict__["_src_node_id"] = 101
    return reply


def undecodable(question, reply):
    class Bomb(list):
        def __iter__(self):
            raise KeyError("an object id that is not there")

    return Bomb([reply])


SPOILT = {
    "nothing at all": lambda question, reply: None,
    "NaN": poison,
    "huge": lambda question, reply: make_and(reply, torch.full((260,), 1e20)),
    "an old round": lambda question, reply: make_and(reply, torch.zeros(260), -1),
    "the name of another node": from_another,
    "what Flower cannot decode": undecodable,
    "an error": lambda question, reply: Message(Error(1, "secret"), reply_to=question),
    "the question itself": lambda question, reply: Message(question.content, reply_to=question),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_misbehaving_node_is_as_good_as_absent(tmp_path, caplog, what):
    """Same noise, same denominator, every round released: only its own people are missing."""
    recipe = small("plan.rounds=3", "plan.sampler.rate=1.0")
    absent = FakeGrid(app_of(recipe), 3)
    absent.spoil = {100: lambda question, reply: None}
    spoilt = FakeGrid(app_of(recipe), 3)
    spoilt.spoil = {100: SPOILT[what]}
    states = []
    for name, grid in (("absent", absent), ("spoilt", spoilt)):
        strategy = strategy_of(recipe, tmp_path / name)
        strategy.start(grid, timeout=0)
        states.append(strategy.run.state.params)
        assert strategy.outcome.summary()["rounds"] == 3
        assert verify(tmp_path / name)["valid"]
    assert torch.equal(*states)
    assert caplog.text.count("node 100") >= 3
    assert "secret" not in caplog.text


def test_a_second_reply_of_a_node_is_refused(tmp_path, caplog):
    recipe = small("plan.rounds=2", "plan.sampler.rate=1.0")
    states = []
    for name, spoil in (("once", lambda q, r: r), ("twice", lambda q, r: [r, r])):
        grid = FakeGrid(app_of(recipe), 3)
        grid.spoil = {100: spoil}
        strategy = strategy_of(recipe, tmp_path / name)
        strategy.start(grid, timeout=0)
        states.append(strategy.run.state.params)
    assert torch.equal(*states)
    assert caplog.text.count("is a second one") == 2


def test_a_reply_of_a_node_that_was_not_asked_is_refused(tmp_path, caplog, question):
    strategy = strategy_of(small(), tmp_path / "r")
    stranger = Message(make_reply(torch.ones(260), LINEAR, 0), reply_to=question)
    strategy.aggregate_train(1, [stranger])
    assert "reply of node 100 counts as zero: it was not asked for" in caplog.text
    close(strategy)
    assert len(read_ledger(tmp_path / "r" / "ledger.sqlite")[1]) == 1  # released all the same


def test_a_lying_sum_moves_the_model_by_no_more_than_its_people_could(tmp_path):
    """A node that sends the worst allowed: the server's bound is all that holds it."""
    recipe = small("plan.rounds=1", "plan.sampler.rate=1.0", "denoiser.strength=0")
    clip_norm, people = recipe.plan.clip_norm, 20
    worst = torch.full((260,), 1.0, dtype=torch.float64)
    worst *= people * clip_norm / worst.norm()
    states = []
    for name, vector in (("zero", torch.zeros(260)), ("worst", worst)):
        grid = FakeGrid(app_of(recipe), 3)
        grid.spoil = {100: lambda q, r, v=vector: make_and(r, v)}
        strategy = strategy_of(recipe, tmp_path / name)
        strategy.start(grid, timeout=0)
        states.append(strategy.run.state.params)
    moved = float((states[1] - states[0]).double().norm()) * recipe.plan.expected_cohort
    assert moved == pytest.approx(people * clip_norm, rel=1e-4)
    assert task_of(recipe).data.num_clients == 60
