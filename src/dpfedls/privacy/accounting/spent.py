"""What has been spent: rounds, each with how often, that may be accounted for together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from dpfedls.errors import InputError
from dpfedls.privacy.event import RoundEvent

Spent: TypeAlias = Sequence[tuple[RoundEvent, int]]


def merged(spent: Spent) -> list[tuple[RoundEvent, int]]:
    """Equal events counted together, absent ones dropped, mixed relations refused."""
    counts: Counter[RoundEvent] = Counter()
    for event, count in spent:
        if count < 0:
            raise InputError(f"a number of rounds must be >= 0, got {count}; use 0 for none")
        counts[event] += count
    rounds = [(event, count) for event, count in counts.items() if count]
    if len({event.sampler.relation for event, _ in rounds}) > 1:
        raise InputError(
            "Poisson and fixed-size rounds cannot share one ε: the first holds between populations "
            "that differ by one client more or fewer, the second by one client replaced; "
            "account for them apart, or use one sampler throughout"
        )
    return rounds
