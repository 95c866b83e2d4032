"""The people's data: arrays with everyone's samples, and where each client's lie in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dpfedls.errors import InputError
from dpfedls.people.grouping import bounded, grouped
from dpfedls.people.samples import (
    Features,
    Samples,
    as_input,
    as_samples,
    described,
    each,
    leaves,
    select,
)
from dpfedls.people.stacking import stacked
from dpfedls.people.tables import dataset_columns, frame_columns
from dpfedls.people.units import AS_GIVEN, AsGiven


@dataclass(frozen=True)
class ClientData:
    """Samples of all clients; client j owns rows ``order[starts[j]:starts[j] + sizes[j]]``.

    Without ``order`` these are the rows themselves. Sensitive, but for ``most_samples``, the public
    bound on how many samples of one person count. ``features`` may be a view with overlapping rows,
    such as windows on a text, and may lie in a mapped file; samples that are taken have the units
    that are asked for.
    """

    features: Features
    targets: Tensor
    starts: Int64[np.ndarray, "clients"]
    sizes: Int64[np.ndarray, "clients"]
    order: Int64[np.ndarray, "rows"] | None = None
    most_samples: int | None = None
    units: AsGiven = AS_GIVEN

    def __post_init__(self) -> None:
        starts, sizes = self.starts[self.sizes != 0], self.sizes[self.sizes != 0]
        by_place = np.argsort(starts)
        ends = (starts + sizes)[by_place]
        apart = (ends[:-1] <= starts[by_place][1:]).all()
        if (sizes < 0).any() or not apart or starts.min(initial=0) < 0 or self._order_repeats():
            raise InputError(
                "clients' samples overlap or have negative places; a sample belongs to one person: "
                "give every client rows of its own"
            )
        rows = {len(leaf) for leaf in leaves(self.features)}
        places = len(self.targets) if self.order is None else len(self.order)
        if ends.max(initial=0) > places or rows != {len(self.targets)}:
            raise InputError(
                f"clients own rows up to {ends.max(initial=0)}, but there are "
                f"{' and '.join(map(str, sorted(rows)))} rows of features and {len(self.targets)} "
                "targets; give one target for every row"
            )

    def __repr__(self) -> str:
        """How many people and what a sample is: a log should hold nobody's values."""
        return f"ClientData({self.num_clients} people, {described((self.features, self.targets))})"

    def _order_repeats(self) -> bool:
        """Whether a row stands twice in ``order``, or is none of the targets'."""
        if self.order is None or len(self.order) == 0:
            return False
        if self.order.min() < 0 or self.order.max() >= len(self.targets):
            return True
        seen = np.zeros(len(self.targets), dtype=bool)
        seen[self.order] = True
        return int(seen.sum()) < len(self.order)

    @classmethod
    def from_pairs(cls, pairs: Iterable[Any] | Mapping[Any, Any]) -> ClientData:
        """One pair of features and targets a client, or a dict of them; sizes may be zero.

        The pairs may come from a generator: they are not kept, so only one copy is in memory.
        """
        everyone = in_order(pairs) if isinstance(pairs, Mapping) else pairs
        (features, targets), sizes = stacked(everyone)
        return cls(features, targets, np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def from_arrays(
        cls, x: Any, y: Any, users: Any, most_samples: int | None = None, seed: int = 0
    ) -> ClientData:
        """One client for each label in ``users``, in their order; no sample is copied or moved."""
        features, targets = as_samples((x, y), "the data")
        groups = grouped(users)
        if groups.sizes.sum() != len(targets):
            raise InputError(
                f"there are {groups.sizes.sum()} users for {len(targets)} samples; each sample has "
                "one owner: name one for every sample"
            )
        _, starts, sizes, order = bounded(groups, most_samples, seed)
        return cls(features, targets, starts, sizes, order, most_samples)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        user: str = "user_id",
        target: str = "y",
        features: str | Sequence[str] | None = None,
        most_samples: int | None = None,
        seed: int = 0,
    ) -> ClientData:
        """From a pandas frame; features are all other columns, or those named."""
        return cls.from_arrays(*frame_columns(frame, user, target, features), most_samples, seed)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        user: str = "user_id",
        features: str | Sequence[str] | None = None,
        target: str = "y",
        most_samples: int | None = None,
        seed: int = 0,
    ) -> ClientData:
        """From a Hugging Face data set, or a torch one of dicts or (features, target, user)."""
        columns = dataset_columns(dataset, user, target, features)
        return cls.from_arrays(*columns, most_samples, seed)

    @classmethod
    def nobody(cls, num_clients: int) -> ClientData:
        """A population whose data is elsewhere: everybody counts and nobody has a sample here."""
        nothing = np.zeros(num_clients, dtype=np.int64)
        return cls(torch.empty(0), torch.empty(0), nothing, nothing)

    @property
    def num_clients(self) -> int:
        """How many people there are."""
        return len(self.sizes)

    @property
    def device(self) -> torch.device:
        """Where batches are made."""
        return self.targets.device

    def to(self, device: torch.device) -> ClientData:
        """On another device; features that would fill it stay and are fetched batch by batch."""
        bytes_ = sum(leaf.numel() * leaf.element_size() for leaf in leaves(self.features))
        stay = device.type == "cuda" and bytes_ > torch.cuda.mem_get_info(device)[0] / 2
        features = self.features if stay else each(lambda v: v.to(device), self.features)
        units = self.units.to(device)
        return replace(self, features=features, targets=self.targets.to(device), units=units)

    def in_units(self, units: AsGiven) -> ClientData:
        """The same people, their inputs in these units."""
        return replace(self, units=units.to(self.device))

    def rows(self, j: int) -> Int64[np.ndarray, "rows"]:
        """Which rows of features and targets are client j's."""
        places = np.arange(self.starts[j], self.starts[j] + self.sizes[j])
        return places if self.order is None else self.order[places]

    def client(self, j: int) -> Samples:
        """The samples of one client, ready for the model; views where nothing is converted."""
        own = slice(int(self.starts[j]), int(self.starts[j] + self.sizes[j]))
        own = own if self.order is None else torch.from_numpy(self.order[own])
        features = self.units(each(lambda v: as_input(v[own]), self.features))
        return features, as_input(self.targets[own])

    def take(self, rows: Int64[Tensor, "..."], padded: bool = False) -> Samples:
        """Samples by place, counted like ``starts``; where padded, one may be ~place.

        A place is a row, or, where there is an order, the place in it (see ``schedule``).
        """
        kept = torch.where(rows < 0, ~rows, rows) if padded else rows
        kept = kept if self._order is None else self._order.to(kept.device)[kept]
        features = each(lambda values: as_input(select(values, kept)), self.features)
        return self.units(features), as_input(select(self.targets, kept))

    @cached_property
    def _order(self) -> Tensor | None:
        """Where the batches are made."""
        return None if self.order is None else torch.from_numpy(self.order).to(self.device)


def in_order(people: Any) -> list[Any]:
    """The values of a dict by its keys' order, of anything else as they come."""
    if not isinstance(people, Mapping):
        return list(people)
    try:
        return [people[key] for key in sorted(people)]
    except TypeError:  # keys of several kinds
        return list(people.values())
