"""Messages under way to nodes, and their replies as they come in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

log = logging.getLogger("dpfedls")
PAUSE = 0.3  # seconds between two looks at the SuperLink


class Post:
    """Messages sent and not yet answered.

    Replies are fetched one by one: Flower decodes what a node sent while fetching it, so one that
    cannot be decoded must not take those of other nodes with it. A reply belongs to the node its
    question was sent to; what it says about its sender itself must agree.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}  # message id → node

    def send(self, grid: Grid, messages: Iterable[Message]) -> Post:
        """Send messages; those that Flower cannot take are simply never answered."""
        messages = list(messages)
        for message, id_ in zip(messages, grid.push_messages(messages), strict=False):
            if id_:
                self.waiting[id_] = message.metadata.dst_node_id
        return self

    def arrived(self, grid: Grid) -> Iterator[Message]:
        """Replies that are there now."""
        for id_, node in list(self.waiting.items()):
            try:
                replies = list(grid.pull_messages([id_]))
            except httpx.HTTPError:  # the SuperLink is gone, which is no node's fault
                raise
            except Exception as error:
                log.warning("reply of node %d cannot be decoded (%s)", node, type(error).__name__)
                del self.waiting[id_]
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
            yield from self.arrived(grid)
            if not self.waiting or time.monotonic() >= end:
                return
            time.sleep(PAUSE)


def message(content: RecordDict, node: int, kind: str, round_: int = 0) -> Message:
    """A question to a node; Flower's log shows the round it belongs to."""
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(round_))
