"""Who sees what of a run, and what ε each of them meets: on one machine, or on nodes."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from dpfedls.component import check_types
from dpfedls.errors import InputError, require_positive
from dpfedls.privacy.accountants import epsilon
from dpfedls.privacy.accounting.known_cohorts import known_cohorts_epsilon
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import FixedSizeSampling


class Nodes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """People's data lies on nodes, and each node sees which of its own people are asked.

    ``most_samples`` of one person count: what a node does for a person is bounded beforehand.
    The other two give something away, and so must be switched on explicitly.
    """

    most_samples: int = 10_000
    reveal_cohorts: bool = False  # fixed-size cohorts, which nodes together can work out
    unprotected_client_metrics: bool = False  # accuracy and loss leave nodes without noise

    def __post_init__(self) -> None:
        check_types(self, "nodes.")
        require_positive("nodes.most_samples", self.most_samples, "1000 is plenty for most tasks")

    def check(self, event: RoundEvent) -> None:
        """Refuse fixed-size cohorts unless it was said that nodes may learn them."""
        if isinstance(event.sampler, FixedSizeSampling) and not self.reveal_cohorts:
            raise InputError(
                "fixed-size cohorts are not secret on nodes: the other nodes can work out who "
                "was sampled, so sampling gives no protection against them; use "
                "Poisson sampling, or say reveal_cohorts to have their ε stated"
            )


def observers(event: RoundEvent, rounds: int, delta: float, nodes: Nodes | None) -> list[Any]:
    """A row for everybody who sees something: observer, their ε at ``delta``, and why."""
    own = epsilon([(event, rounds)], delta)
    anybody = _row("whoever sees the releases", own, "at any time, with any other knowledge")
    if nodes is None:
        machine = _row("the machine that trains", math.inf, "it holds everyone's data")
        return [anybody, machine]
    if isinstance(event.sampler, FixedSizeSampling):
        one, all_ = _one_node(event, rounds, delta), known_cohorts_epsilon(event, rounds, delta)
        why_one = (
            "it knows whether its person was drawn, so one of m among N − 1 is the most that "
            "hides anybody else; a node with more people: at most the next row"
        )
        why_all = "together they can work out who was sampled"
    else:
        one = all_ = own
        why_one = why_all = "who else was drawn says nothing about a person under Poisson sampling"
    return [
        anybody,
        _row("another node, with one person", min(one, all_), why_one),
        _row("all other nodes together", max(own, all_), why_all),
        _row("the server, and a person's own node", math.inf, "they see what noise is added to"),
    ]


def _one_node(event: RoundEvent, rounds: int, delta: float) -> float:
    """ε where one other person's draws are known: at most m of the N − 1 others are drawn."""
    others = max(event.num_clients - 1, 1)
    cohort = min(round(event.rate * event.num_clients), others)
    seen = msgspec.structs.replace(
        event, sampler=FixedSizeSampling(cohort=cohort), num_clients=others
    )
    return epsilon([(seen, rounds)], delta)


def _row(observer: str, cost: float, why: str) -> dict[str, Any]:
    return {"observer": observer, "epsilon": cost, "why": why}
