"""A roster agreed beforehand: whom a node holds follows from its key, whatever it claims."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization as ser
from fake_grid import FakeGrid
from safetensors.numpy import load_file
from test_strategy import app_of, small, strategy_of

from dpfedls import InputError
from dpfedls.flower.agreement import flower_key_name, read_agreement, write_agreement
from dpfedls.flower.credentials import write_node_key
from dpfedls.flower.replies import make_census


class KeyedGrid(FakeGrid):
    """Nodes with keys, as the SuperLink reports those of connections that it has authenticated."""

    def __init__(self, app, nodes, place):
        super().__init__(app, nodes)
        self.keys = {node: write_node_key(place / f"{node}.key") for node in self.contexts}

    def get_nodes(self):
        for node in self.get_node_ids():
            key = ser.load_ssh_public_key(self.keys[node].encode())
            pem = key.public_bytes(ser.Encoding.PEM, ser.PublicFormat.SubjectPublicKeyInfo)
            yield SimpleNamespace(node_id=node, public_key=pem)


def dealt(grid, recipe):
    nodes = len(grid.contexts)
    return {
        grid.keys[100 + i]: list(range(i, recipe.plan.num_clients, nodes)) for i in range(nodes)
    }


def greedy(grid, node, people):
    """The node answers the census with these people instead of its own."""
    honest = grid.app

    def answer(message, context):
        reply = honest(message, context)
        if message.metadata.message_type == "query" and context.node_id == node:
            reply.content = make_census(np.array(people))
        return reply

    grid.app = answer


def test_a_node_that_claims_others_people_gets_its_own(tmp_path, caplog):
    """Believed, it shuts the honest out; by the roster the run is as if it had said the truth."""
    recipe = small("plan.rounds=2")
    results = {}
    for name, lies, agreed in (
        ("honest", False, True),
        ("lied to, believed", True, False),
        ("lied to, agreed", True, True),
    ):
        place = tmp_path / name
        place.mkdir()
        grid = KeyedGrid(app_of(recipe), 3, place)
        if lies:
            greedy(grid, 100, range(60))
        people = dealt(grid, recipe) if agreed else None
        strategy = strategy_of(recipe, place / "r", people=people)
        strategy.start(grid, timeout=0)
        results[name] = load_file(place / "r" / "model.safetensors")["weight"]
        asked = [m for m in grid.sent if m.metadata.message_type == "query"]
        assert bool(asked) != agreed
    assert "held by another node" in caplog.text
    np.testing.assert_array_equal(results["lied to, agreed"], results["honest"])
    assert not np.array_equal(results["lied to, believed"], results["honest"])


def test_a_node_that_the_roster_does_not_know_takes_no_part(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    recipe = small("plan.rounds=2", "plan.sampler.rate=1.0")
    grid = KeyedGrid(app_of(recipe), 3, tmp_path)
    people = dealt(grid, recipe)
    del people[grid.keys[101]]
    strategy_of(recipe, tmp_path / "r", people=people).start(grid, timeout=0)
    assert {m.metadata.dst_node_id for m in grid.sent} == {100, 102}
    assert caplog.text.count("node 101 takes no part: the roster does not know its key") == 1


def test_the_file_is_read_as_it_was_written_and_ranges_are_short(tmp_path):
    key = write_node_key(tmp_path / "node.key")
    other = write_node_key(tmp_path / "other.key")
    write_agreement(tmp_path / "roster.toml", {key: range(0, 6, 2), other: [1]})
    assert read_agreement(tmp_path / "roster.toml") == {key: [0, 2, 4], other: [1]}
    text = f'\ufeff"{key} somebody@hospital" = [7, [10, 12]]\n'  # begun as Windows' Notepad does
    (tmp_path / "short.toml").write_text(text, encoding="utf-8")
    assert read_agreement(tmp_path / "short.toml") == {key: [7, 10, 11, 12]}


@pytest.mark.parametrize(
    "text", ["x", '"key" = 3', '"a b" = 3', '"a b" = [-1]', '"a b" = [[5, 2]]', '"a b" = ["x"]',
             '"a b" = [[1, 2, 3]]', '"a b" = [[0, 99999999999999]]', "a = " + "[" * 3000]
)  # fmt: skip
def test_what_is_no_roster_is_said_in_one_line(tmp_path, text):
    (tmp_path / "roster.toml").write_text(text)
    with pytest.raises(InputError, match="is no roster") as error:
        read_agreement(tmp_path / "roster.toml")
    assert "\n" not in str(error.value)


def test_rosters_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        read_agreement(tmp_path / "roster.toml")
    for number, people in enumerate([{"a b": [0, 1], "c d": [1]}, {"a b": [60]}, {0: [-1]}]):
        with pytest.raises(InputError, match="does not fit a population of 60"):
            strategy_of(small(), tmp_path / str(number), people=people)
    with pytest.raises(InputError, match="one kind for all"):
        strategy_of(small(), tmp_path / "r", people={"a b": [0], 7: [1]})
    assert flower_key_name(b"no key") == ""
