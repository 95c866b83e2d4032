"""Messages under way to nodes, and their replies as they come in."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from dpfedls.flower.incoming import Incoming, Limit, incoming
from dpfedls.flower.replies import Refused

log = logging.getLogger("dpfedls")
PAUSE = 0.3  # seconds between two looks at the SuperLink


class Post:
    """Messages sent and not yet answered.

    Replies are fetched one by one, each within a limit: one that cannot be decoded, is too large
    or fails to arrive must not take those of other nodes with it, and no node keeps the others
    waiting beyond the round's end. A reply belongs to the node its question was sent to; what it
    says about its sender itself must agree.
    """

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.waiting: dict[str, int] = {}  # message id → node
        self._coming: dict[str, Incoming] = {}  # of those, whose reply is on its way

    def send(self, grid: Grid, messages: Iterable[Message]) -> Post:
        """Send messages; those that Flower cannot take are simply never answered."""
        messages = list(messages)
        for message, id_ in zip(messages, grid.push_messages(messages), strict=False):
            if id_:
                self.waiting[id_] = message.metadata.dst_node_id
        return self

    def arrived(self, grid: Grid, end: float = math.inf) -> Iterator[Message]:
        """Replies that are there now, or come in before the end."""
        for id_, node in list(self.waiting.items()):
            try:
                replies = self._replies(grid, id_, end)
            except Exception as error:
                if _is_fatal(error):
                    raise
                why = str(error) if isinstance(error, Refused) else type(error).__name__
                log.warning("reply of node %d cannot be used: %s", node, why)
                del self.waiting[id_]
                self._coming.pop(id_, None)
                continue
            for reply in replies:
                self.waiting.pop(id_, None)
                if reply.metadata.src_node_id == node:
                    yield reply
                elif reply.has_error():  # from the SuperLink: the node went away, say
                    log.warning("no reply of node %d: Flower error %d", node, reply.error.code)
                else:
                    log.warning("reply of node %d names another sender and is dropped", node)

    def replies(self, grid: Grid, timeout: float) -> Iterator[Message]:
        """Replies as they come in, until all are there or the time is up."""
        end = time.monotonic() + timeout
        while True:
            yield from self.arrived(grid, end)
            if not self.waiting or time.monotonic() >= end:
                return
            time.sleep(PAUSE)

    def _replies(self, grid: Grid, id_: str, end: float) -> Iterable[Message]:
        """What has come to a question, as far as it is whole."""
        if not isinstance(grid, HttpGrid):  # in this process: nothing is put together from pieces
            return grid.pull_messages([id_])
        if id_ not in self._coming and time.monotonic() < end:
            for found in incoming(grid, id_, self.limit):
                self._coming[id_] = found
        if id_ not in self._coming:
            return []
        while time.monotonic() < end and self._coming[id_].fetch():
            pass
        reply = self._coming[id_].message()
        if reply is None:
            return []
        del self._coming[id_]
        return [reply]


def _is_fatal(error: Exception) -> bool:
    """The SuperLink is gone, or no longer takes us for this run: that is no node's fault."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (401, 403)
    return isinstance(error, httpx.HTTPError)


def message(content: RecordDict, node: int, kind: str, round_: int = 0) -> Message:
    """A question to a node; Flower's log shows the round it belongs to."""
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(round_))
