"""What nodes upload, fetched over Flower's own wire format: bounded in size and in time."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace

import httpx
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from torch import nn

from dpfedls.flower.exchange import Post
from dpfedls.flower.incoming import Limit
from dpfedls.flower.replies import make_reply, read_metrics
from dpfedls.parameters import Layout

LAYOUT = Layout.of(nn.Linear(300, 400))
LIMIT = Limit.of_update(LAYOUT)


class Wire:
    """The SuperLink's side of the Runtime API, with replies that nodes have uploaded."""

    def __init__(self):
        self.replies, self.objects, self.hidden, self.broken = {}, {}, set(), {}
        self.pulled = 0

    def upload(self, reply):
        question = reply.metadata.reply_to_message_id
        objects = {k: o.deflate() for k, o in get_all_nested_objects(reply).items()}
        self.objects |= objects
        proto = message_to_proto(reply)
        proto.metadata.message_id = reply.object_id
        self.replies[question] = (proto, get_object_tree(reply))
        return list(objects)

    def PullMessages(self, request):
        (question,) = request.message_ids
        found = self.replies.pop(question, None)
        return SimpleNamespace(
            messages_list=[found[0]] if found else [],
            message_object_trees=[found[1]] if found else [],
        )

    def PullObject(self, request):
        self.pulled += 1
        if request.object_id in self.broken:
            raise self.broken[request.object_id]
        return SimpleNamespace(
            object_found=request.object_id in self.objects,
            object_available=request.object_id not in self.hidden,
            object_content=self.objects.get(request.object_id, b""),
        )

    def ConfirmMessageReceived(self, request):
        pass


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def grid(wire, monkeypatch):
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    grid = HttpGrid(token="token")
    grid._client, grid._run = wire, SimpleNamespace(run_id=1)
    monkeypatch.setattr(HttpGrid, "run", property(lambda grid: grid._run))
    return grid


def asked(node):
    question = Message(RecordDict(), dst_node_id=node, message_type="train")
    question.metadata.__dict__["_message_id"] = f"question {node}"
    return question


def answer(node, value=0.0):
    question = asked(node)
    update = torch.full((LAYOUT.dim,), value, dtype=torch.float64)
    reply = Message(make_reply(update, LAYOUT, 0), reply_to=question)
    reply.metadata.__dict__["_src_node_id"] = node
    return reply


def post(*nodes, limit=LIMIT):
    made = Post(limit)
    made.waiting = {f"question {node}": node for node in nodes}
    return made


def senders(post, grid, timeout=0.2):
    return [reply.metadata.src_node_id for reply in post.replies(grid, timeout)]


def test_an_honest_reply_arrives_whole(wire, grid):
    wire.upload(answer(7, value=3.0))
    (reply,) = post(7).replies(grid, 5)
    sent = answer(7, value=3.0).content
    for name in LAYOUT.names:
        assert reply.content["update"][name].data == sent["update"][name].data


def repeat_chunks(wire, times):
    """The attack: an array that names its one chunk so many times; ids follow from contents."""
    reply = answer(8, value=1.0)
    wire.upload(reply)
    renamed = {}
    for id_, content in list(wire.objects.items()):
        for old, new in renamed.items():
            content = content.replace(old.encode(), new.encode())
        if content.startswith(b"Array ") and b"arraychunk_ids" in content:
            head, _, body = content.partition(b"\x00")
            values = json.loads(body)
            values["arraychunk_ids"] = values["arraychunk_ids"] * times
            body = json.dumps(values).encode()
            kind, children, _ = head.decode().split(" ")
            content = f"{kind} {children} {len(body)}".encode() + b"\x00" + body
        renamed[id_] = get_object_id(content)
        wire.objects[renamed[id_]] = content
    proto, tree = wire.replies["question 8"]
    raw = tree.SerializeToString()
    for old, new in renamed.items():
        raw = raw.replace(old.encode(), new.encode())
    tree.ParseFromString(raw)
    proto.metadata.message_id = tree.object_id


def test_chunks_named_many_times_are_refused_before_they_are_put_together(wire, grid, caplog):
    """A megabyte uploaded would become a gigabyte."""
    repeat_chunks(wire, 1000)
    wire.upload(answer(7))
    tracemalloc.start()
    assert senders(post(8, 7), grid) == [7]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "repeat chunks" in caplog.text
    assert peak < 10 * 8 * LAYOUT.dim


def test_the_attack_above_is_one_where_the_limit_allows_it(wire, grid):
    """So the test would see a decoder that does not measure."""
    repeat_chunks(wire, 20)
    (reply,) = post(8, limit=Limit(10**9, 10**9)).replies(grid, 5)
    assert len(reply.content["update"]["bias"].data) == 20 * 8 * 400


def test_more_bytes_or_pieces_than_an_update_can_have_are_not_fetched(wire, grid, caplog):
    for node, limit in ((1, Limit(8 * LAYOUT.dim - 1)), (2, Limit(10**9, 100))):
        wire.upload(answer(node))
        assert senders(post(node, limit=limit), grid) == []
    assert "larger than any honest reply" in caplog.text
    many = Message(RecordDict({str(i): ConfigRecord() for i in range(3000)}), reply_to=asked(3))
    for i in range(3000):  # all of them different
        many.content[str(i)]["i"] = i
    many.metadata.__dict__["_src_node_id"] = 3
    wire.upload(many)
    before = wire.pulled
    assert senders(post(3, limit=Limit(0)), grid) == []
    assert wire.pulled == before
    assert "pieces" in caplog.text


def test_a_reply_that_never_gets_whole_keeps_nobody_waiting(wire, grid):
    """Flower alone would look for the missing piece for two hours, and for nothing else."""
    slow = wire.upload(answer(8, value=1.0))
    wire.hidden = {slow[0]}
    wire.upload(answer(7))
    waiting = post(8, 7)
    assert senders(waiting, grid) == [7]
    assert list(waiting.waiting.values()) == [8]
    wire.hidden = set()  # it is whole a moment later, in time
    assert senders(waiting, grid) == [8]


def status(code):
    response = httpx.Response(code, request=httpx.Request("POST", "http://x"))
    return httpx.HTTPStatusError("no", request=response.request, response=response)


@pytest.mark.parametrize("code", [400, 404, 413, 500])
def test_an_http_error_on_one_reply_costs_that_reply_alone(wire, grid, code, caplog):
    wire.broken = {wire.upload(answer(8, value=1.0))[0]: status(code)}
    wire.upload(answer(7))
    assert senders(post(8, 7), grid) == [7]
    assert "reply of node 8 cannot be used" in caplog.text


@pytest.mark.parametrize("error", [status(401), httpx.ConnectError("gone")])
def test_a_superlink_that_is_gone_ends_the_run(wire, grid, error):
    """Otherwise rounds of nothing but noise would be paid for."""
    wire.broken = {wire.upload(answer(8))[0]: error}
    with pytest.raises(httpx.HTTPError):
        senders(post(8), grid)


def test_a_piece_that_was_never_uploaded(wire, grid, caplog):
    del wire.objects[wire.upload(answer(8))[0]]
    assert senders(post(8), grid) == []
    assert "never uploaded" in caplog.text


@pytest.mark.parametrize(
    "record",
    [
        None,
        ConfigRecord({"samples": 3}),
        {"loss": 1.0},
        {"samples": float("nan"), "loss": 1.0},
        {"samples": -1, "loss": 1.0},
        {"samples": 3, "loss": [1.0, 2.0]},
    ],
)
def test_metrics_that_are_no_numbers_are_refused(grid, record):
    from flwr.app import MetricRecord

    from dpfedls.flower.replies import Refused

    if isinstance(record, dict):
        record = MetricRecord(record)
    content = RecordDict({} if record is None else {"metrics": record})
    with pytest.raises(Refused):
        read_metrics(Message(content, reply_to=asked(1)))
