"""A reply fetched piece by piece, and never more of it than an honest one can have.

Flower puts a reply together by itself and asks nobody how large it may become: an array may name
one uploaded chunk thousands of times. It also waits for what a node has not uploaded yet, for up to
two hours. So pieces are fetched here, measured before they are put together, and what is not there
yet is looked for again later. This uses parts of Flower that are its own affair: the version is
pinned, and the tests run a real federation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from flwr.app import Array, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from dpfedls.flower.replies import Refused
from dpfedls.parameters import Layout

_ENVELOPE = 2**16  # bytes: more than a message, its records and their names take
_PER_TENSOR = 2**10  # bytes: a tensor's name, shape and the digests of its chunks
_PER_PIECE = 32  # bytes that any piece takes at the least


class Limit(NamedTuple):
    """The most that an honest reply can have, in bytes."""

    numbers: int  # of all arrays together, once they are put together
    rest: int = _ENVELOPE  # names, shapes, settings, digests

    @classmethod
    def of_update(cls, layout: Layout) -> Limit:
        """An update in float64."""
        return cls(8 * layout.dim, _ENVELOPE + _PER_TENSOR * len(layout.names))

    @classmethod
    def of_census(cls, num_clients: int) -> Limit:
        """The numbers of everybody."""
        return cls(0, _ENVELOPE + 8 * num_clients)


class Incoming:
    """A reply of which some pieces may still be under way."""

    def __init__(self, grid: HttpGrid, message_id: str, pieces: list[str], limit: Limit) -> None:
        self.id, self._grid, self._limit = message_id, grid, limit
        self._left = list(dict.fromkeys(pieces))
        self._pieces: dict[str, bytes] = {}
        self._numbers, self._rest = 0, 0
        if _PER_PIECE * len(self._left) > limit.rest + limit.numbers:
            raise Refused(f"it has {len(self._left)} pieces")

    def fetch(self) -> bool:
        """Fetch the next piece; False where it is not there yet, or where all are."""
        if not self._left:
            return False
        request = PullObjectRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, object_id=self._left[-1]
        )
        found = self._grid._runtime_client.PullObject(request)
        if not found.object_found:
            raise Refused("a piece of it was never uploaded")
        if not found.object_available:
            return False
        self._measure(found.object_content)
        self._pieces[self._left.pop()] = found.object_content
        return True

    def _measure(self, piece: bytes) -> None:
        kind, _, body = get_object_head_values_from_object_content(piece)
        body = min(max(body, 0), len(piece)) if kind == ArrayChunk.__qualname__ else 0
        self._numbers += body
        self._rest += len(piece) - body
        if self._numbers > self._limit.numbers or self._rest > self._limit.rest:
            raise Refused("it is larger than any honest reply")

    def message(self) -> Message | None:
        """The reply, put together within its limit, once all pieces are here."""
        if self._left:
            return None
        if _inflated(self._pieces) > self._limit.numbers + self._limit.rest:
            raise Refused("its arrays repeat chunks and would grow beyond any honest reply")
        confirm = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=self.id
        )
        self._grid._runtime_client.ConfirmMessageReceived(confirm)
        made = inflate_object_from_contents(self.id, self._pieces)
        if not isinstance(made, Message):
            raise Refused("it is no message")
        made.metadata.__dict__["_message_id"] = self.id
        return made


def incoming(grid: HttpGrid, question: str, limit: Limit) -> Iterator[Incoming]:
    """The replies to a question that the SuperLink has; it hands out each one once."""
    request = PullAppMessagesRequest(message_ids=[question])
    found = grid._runtime_client.PullMessages(request)
    for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        if message.metadata.reply_to_message_id != question:
            continue
        pieces = [piece.object_id for piece in iterate_object_tree(tree)]
        yield Incoming(grid, message.metadata.message_id, pieces, limit)


def _inflated(pieces: dict[str, bytes]) -> int:
    """Bytes of all arrays once each chunk stands wherever it is named."""
    total = 0
    for piece in pieces.values():
        kind, chunks, _ = get_object_head_values_from_object_content(piece)
        if kind == Array.__qualname__:
            places = json.loads(get_object_body(piece, Array))["arraychunk_ids"]
            total += sum(len(pieces[chunks[place]]) for place in places)
    return total
