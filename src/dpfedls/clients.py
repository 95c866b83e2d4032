"""The people's data: two tensors for everyone, and where each client's samples lie in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dpfedls.errors import InputError


@dataclass(frozen=True)
class ClientData:
    """Samples of all clients; client j owns ``sizes[j]`` consecutive ones from ``starts[j]`` on.

    Sensitive. ``features`` may be a view with overlapping rows, such as windows on a text.
    """

    features: Tensor
    targets: Tensor
    starts: Int64[np.ndarray, "clients"]
    sizes: Int64[np.ndarray, "clients"]

    def __post_init__(self) -> None:
        starts, sizes = self.starts[self.sizes != 0], self.sizes[self.sizes != 0]
        order = np.argsort(starts)
        ends = (starts + sizes)[order]
        apart = (ends[:-1] <= starts[order][1:]).all()
        if (sizes < 0).any() or not apart or starts.min(initial=0) < 0:
            raise InputError(
                "clients' samples overlap or have negative places; a sample belongs to one person: "
                "give every client rows of its own"
            )
        if ends.max(initial=0) > len(self.targets) or len(self.features) != len(self.targets):
            raise InputError(
                f"clients own rows up to {ends.max(initial=0)}, but there are {len(self.features)} "
                f"rows of features and {len(self.targets)} targets"
            )

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Tensor, Tensor]]) -> ClientData:
        """One pair of tensors a client, features and targets; sizes may differ, or be zero."""
        pairs = list(pairs)
        if len(pairs) == 0:
            raise InputError(
                "clients is empty; there is nobody to train on: give one (features, targets) "
                "pair of tensors a person"
            )
        for j, pair in enumerate(pairs):
            if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
                raise InputError(
                    f"clients[{j}] is not a pair of tensors; give (features, targets), from NumPy "
                    "by torch.from_numpy"
                )
            features, targets = pair
            if len(features) != len(targets):
                raise InputError(
                    f"clients[{j}] has {len(features)} rows of features but {len(targets)} "
                    "targets; give one target for every row"
                )
            like = pairs[0][0]
            if features.shape[1:] != like.shape[1:] or features.dtype != like.dtype:
                raise InputError(
                    f"clients[{j}] has features of {features.dtype} and shape "
                    f"{tuple(features.shape[1:])} a sample, clients[0] of {like.dtype} and "
                    f"{tuple(like.shape[1:])}; all clients train one model, so make them alike"
                )
        sizes = np.array([len(targets) for _, targets in pairs], dtype=np.int64)
        return cls(
            torch.cat([features for features, _ in pairs]),
            torch.cat([targets for _, targets in pairs]),
            np.concatenate([[0], np.cumsum(sizes)[:-1]]),
            sizes,
        )

    @classmethod
    def nobody(cls, num_clients: int) -> ClientData:
        """A population whose data is elsewhere: everybody counts and nobody has a sample here."""
        nothing = np.zeros(num_clients, dtype=np.int64)
        return cls(torch.empty(0), torch.empty(0), nothing, nothing)

    @property
    def num_clients(self) -> int:
        """How many people there are."""
        return len(self.sizes)

    def to(self, device: torch.device) -> ClientData:
        """The same data on another device."""
        return replace(self, features=self.features.to(device), targets=self.targets.to(device))

    def client(self, j: int) -> tuple[Tensor, Tensor]:
        """The samples of one client, as views."""
        own = slice(int(self.starts[j]), int(self.starts[j] + self.sizes[j]))
        return self.features[own], self.targets[own]

    def take(self, rows: Int64[Tensor, "..."], padded: bool = False) -> tuple[Tensor, Tensor]:
        """Samples by row; where padded, a row may be written ~row (see ``schedule``)."""
        kept = torch.where(rows < 0, ~rows, rows) if padded else rows
        features, targets = as_input(_select(self.features, kept)), as_input(self.targets[kept])
        return features, targets


def as_input(values: Tensor) -> Tensor:
    """What torch wants: floats as they are, symbols and labels (stored small) as int64."""
    return values if values.is_floating_point() else values.long()


def _select(values: Tensor, rows: Tensor) -> Tensor:
    """``values[rows]``; whole rows are copied at once, which indexing does only along the way."""
    return values.index_select(0, rows.reshape(-1)).view(*rows.shape, *values.shape[1:])


def people(clients) -> ClientData:
    """Stopgap until the data branch lands."""
    return clients if isinstance(clients, ClientData) else ClientData.from_pairs(clients)
