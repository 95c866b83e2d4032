"""The SuperLink's side of Flower's Runtime API, in this process: replies that nodes sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

Answering = Callable[[Message], RecordDict]


class Wire:
    """Replies wait here in Flower's own format, cut into pieces, until they are asked for."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[Any, Any]] = {}
        self.objects: dict[str, bytes] = {}

    def upload(self, reply: Message) -> list[str]:
        """A node's reply; the ids of its pieces."""
        objects = {id_: made.deflate() for id_, made in get_all_nested_objects(reply).items()}
        self.objects |= objects
        proto = message_to_proto(reply)
        proto.metadata.message_id = reply.object_id
        self.replies[reply.metadata.reply_to_message_id] = (proto, get_object_tree(reply))
        return list(objects)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        """Each reply is handed out once."""
        found = [self.replies.pop(id_) for id_ in request.message_ids if id_ in self.replies]
        return SimpleNamespace(
            messages_list=[proto for proto, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        """A piece, once: what was fetched is forgotten."""
        content = self.objects.pop(request.object_id, None)
        return SimpleNamespace(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        """Nothing is kept."""


class WiredGrid(HttpGrid):
    """Flower's grid, whose nodes answer at once, here; their replies cross the wire."""

    def __init__(self, nodes: Iterable[int], answering: Answering) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        super().__init__(token="token")
        self.wire, self.nodes, self.answering = Wire(), list(nodes), answering
        self._client = self.wire  # type: ignore[assignment]
        self._asked = 0
        self.asking = 0.0  # seconds of CPU on the nodes' side

    @property
    def run(self) -> Any:
        """Only its number is looked at."""
        return SimpleNamespace(run_id=1)

    def get_node_ids(self) -> list[int]:
        """All are there."""
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask each node; its reply is uploaded before the next is asked."""
        ids, begun = [], time.process_time()
        for message in messages:
            self._asked += 1
            ids.append(f"question {self._asked}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            reply = Message(self.answering(message), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            self.wire.upload(reply)
        self.asking += time.process_time() - begun
        return ids
