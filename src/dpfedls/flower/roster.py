"""Which node holds whom. The population is fixed by the plan; nodes come and go."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid

from dpfedls.errors import InputError
from dpfedls.flower.agreement import Agreement, flower_key_name, key_name
from dpfedls.flower.exchange import PAUSE, Post, message
from dpfedls.flower.incoming import Limit
from dpfedls.flower.replies import Refused, read_census
from dpfedls.sampling import Indices

log = logging.getLogger("dpfedls")


class People:
    """The registered population and where each person's data is.

    Guarantees: nobody is held by two nodes, and nobody moves while the server runs. A person
    whom no node holds, or whose node is away, still belongs to the population and counts as zero.
    """

    def __init__(self, num_clients: int, public: Mapping[int, Sequence[int]] | None = None) -> None:
        self.num_clients = num_clients
        self.is_public = public is not None
        self._holder = np.full(num_clients, -1, dtype=np.int64)  # positions in _nodes
        self._nodes: list[int] = []
        for node, people in (public or {}).items():
            try:
                if min(people, default=0) < 0:
                    raise IndexError(f"{min(people)} is nobody's number")
                self.settle(node, np.asarray(list(people), dtype=np.int64))
            except (Refused, IndexError) as error:
                raise InputError(
                    f"people[{node}] does not fit a population of {num_clients}: {error}; give "
                    "each node its own people, numbered from 0"
                ) from error

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def settle(self, node: int, people: Indices) -> None:
        """Note that a node holds these people; Refused, and nothing noted, if another one does."""
        if node in self._nodes:
            raise Refused("it has said whom it holds before")
        taken = people[self._holder[people] >= 0]
        if len(taken):
            raise Refused(f"person {taken[0]} is held by another node")
        self._holder[people] = len(self._nodes)
        self._nodes.append(node)

    def by_node(self, cohort: Indices) -> dict[int, Indices]:
        """The cohort, divided among the nodes that hold it; people of no node are left out."""
        holders = self._holder[cohort]
        return {self._nodes[i]: cohort[holders == i] for i in np.unique(holders[holders >= 0])}


class Roster:
    """Keeps the people up to date as nodes connect.

    Whom a node holds was agreed by its public key; without an agreement every node is asked. Where
    there is one nothing is asked: there is nothing that a node could claim.
    """

    def __init__(self, people: People, agreed: Agreement | None = None) -> None:
        if agreed is not None:
            People(people.num_clients, dict(enumerate(agreed.values())))  # nobody twice
        self.people, self._agreed = people, agreed
        self._strangers: set[int] = set()
        self._asked: dict[int, float] = {}  # node → when to ask again if no answer has come
        self._post = Post(Limit.of_census(people.num_clients))

    def gather(self, grid: Grid, nodes: int, timeout: float) -> None:
        """Before the first round: wait for so many nodes, and for what they answer."""
        end = time.monotonic() + timeout
        while not self._is_complete(grid, nodes):
            if time.monotonic() >= end:
                log.warning(
                    "after %g s not all of %d nodes have said whom they hold; whoever is missing "
                    "counts as zero",
                    timeout,
                    nodes,
                )
                return
            time.sleep(PAUSE)

    def _is_complete(self, grid: Grid, nodes: int) -> bool:
        self.settle(grid)
        there = set(grid.get_node_ids())
        return len(there) >= nodes and not there.intersection(self._post.waiting.values())

    def settle(self, grid: Grid) -> None:
        """Ask nodes that are new; note what those asked earlier have answered by now."""
        if self._agreed is not None:
            self._settle_by_key(grid, self._agreed)
            return
        if self.people.is_public:
            return
        now, waiting = time.monotonic(), set(self._post.waiting.values())
        due = [
            node
            for node in grid.get_node_ids()
            if node not in waiting and self._asked.get(node, now) <= now
        ]
        self._asked |= dict.fromkeys(due, now + _PATIENCE)
        self._post.send(grid, [message(RecordDict(), node, MessageType.QUERY) for node in due])
        for reply in self._post.arrived(grid):
            node = reply.metadata.src_node_id
            self._asked[node] = math.inf
            try:
                self.people.settle(node, read_census(reply, node, self.people.num_clients))
            except Refused as cause:
                log.warning("node %d takes no part: %s", node, cause)

    def _settle_by_key(self, grid: Grid, agreed: Agreement) -> None:
        for found in grid.get_nodes():  # pyright: ignore[reportAttributeAccessIssue]
            node, key = found.node_id, flower_key_name(found.public_key)
            if node in self.people or node in self._strangers:
                continue
            try:
                if key not in agreed:
                    raise Refused("the roster does not know its key")
                self.people.settle(node, np.asarray(agreed[key], dtype=np.int64))
            except Refused as cause:
                self._strangers.add(node)
                log.warning("node %d takes no part: %s", node, cause)


def make_roster(
    num_clients: int, people: Mapping[int, Sequence[int]] | Agreement | None = None
) -> Roster:
    """By public keys, by Flower's node ids, or by what each node says when asked."""
    keys = {key_name(key): whom for key, whom in (people or {}).items() if isinstance(key, str)}
    ids = {node: whom for node, whom in (people or {}).items() if isinstance(node, int)}
    if keys and ids:
        raise InputError("people has both public keys and node ids; give one kind for all nodes")
    if keys:
        return Roster(People(num_clients), keys)
    return Roster(People(num_clients, ids if people is not None else None))


_PATIENCE = 15.0  # seconds before a question that got lost on its way is asked again
