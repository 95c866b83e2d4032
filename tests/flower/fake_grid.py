"""A Grid that calls the ClientApp in this process, with nodes that can be made to misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Spoil = Callable[[Message, Message], Message | list[Message] | None]
"""``spoil(question, reply)`` gives what arrives instead of the reply."""


class FakeGrid(Grid):
    """Nodes 100, 101, … that all run one ClientApp, each with its own partition-id."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app = app
        self.contexts = {
            100 + i: Context(
                run_id=1,
                node_id=100 + i,
                node_config={"partition-id": i, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for i in range(nodes)
        }
        self.away: set[int] = set()
        self.spoil: dict[int, Spoil] = {}  # by node, for train messages
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self._replies: dict[str, list[Message]] = {}

    @property
    def run(self):
        raise NotImplementedError

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *_args, **_kwargs):
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if node not in self.away]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [reply for id_ in message_ids for reply in self._replies.pop(id_, [])]
        self.received += found
        return found

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        id_ = f"message {len(self.sent)}"
        message.metadata.__dict__["_message_id"] = id_
        self.sent.append(message)
        node = message.metadata.dst_node_id
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # as Flower's own runtime does it
            reply = Message(Error(0, f"{type(error)}:<'{error}'>"), reply_to=message)
        replies: Message | list[Message] | None = reply
        if message.metadata.message_type == "train" and node in self.spoil:
            replies = self.spoil[node](message, reply)
        if isinstance(replies, Message):
            replies = [replies]
        self._replies[id_] = replies or []
        return id_
