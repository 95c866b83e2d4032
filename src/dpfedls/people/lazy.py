"""Everybody's data, whatever way it is given: in memory, or loaded person by person."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dpfedls.errors import InputError, require_positive
from dpfedls.people.clients import ClientData, in_order
from dpfedls.people.grouping import counted, require_count
from dpfedls.people.samples import (
    Samples,
    as_input,
    as_samples,
    described,
    each,
    joined,
    kind,
)
from dpfedls.people.tables import collated
from dpfedls.people.units import AS_GIVEN, AsGiven

_TRIED = 8  # people that are loaded before a run starts: where all are malformed, the model is


class LazyClients:
    """A torch Dataset a person, of (features, target) items, loaded when that person trains.

    A person's label is the key in a dict of them; in a list it is the place, which stays that
    person's own: whoever leaves leaves an empty data set. To the engines it is like ``ClientData``;
    rows are numbered person by person. Once more than ``kept`` people are in memory, or more than
    train at once, whoever was used longest ago is forgotten. ``check(j, samples)`` is called on
    each person's samples when they are loaded, and on nobody else's. ``like`` is a pair of made-up
    or public samples: of what shape and dtype people's are. A deployed run needs it, or test
    samples, since it may not look at anybody for that.
    """

    order = None

    def __init__(
        self,
        datasets: Sequence[Any] | Mapping[Any, Any],
        most_samples: int | None = None,
        seed: int = 0,
        kept: int = 8,
        like: Any = None,
    ) -> None:
        require_positive("kept", kept, "whoever trains must be in memory")
        if most_samples is not None:
            require_count(most_samples)
        self._labels: Sequence[Any] = range(len(datasets))
        if isinstance(datasets, Mapping):
            self._labels, datasets = in_order({key: key for key in datasets}), in_order(datasets)
        try:
            lengths = np.array([len(dataset) for dataset in datasets], dtype=np.int64)
        except TypeError as error:
            raise InputError(
                f"a person's data set has no length ({error}), and batches need one: give "
                "map-style data sets, with __getitem__ and __len__"
            ) from error
        if len(lengths) == 0:
            raise InputError(
                "clients is empty; there is nobody to train on: give a Dataset a person"
            )
        self.most_samples, self.seed, self._room = most_samples, seed, kept
        self.like = None if like is None else as_samples(like, "like")
        self.sizes = np.minimum(lengths, lengths if most_samples is None else most_samples)
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.device, self.units = torch.device("cpu"), AS_GIVEN  # of batches
        self.check: Callable[[int, Samples], None] = lambda j, samples: None
        self._datasets = datasets
        self._loaded: OrderedDict[int, Samples] = OrderedDict()
        self._lock = threading.Lock()  # engines train on several threads

    @property
    def num_clients(self) -> int:
        """How many people there are."""
        return len(self.sizes)

    def to(self, device: torch.device) -> LazyClients:
        """The same people, their batches on another device."""
        other = copy.copy(self)
        other.device, other._loaded, other._lock = device, OrderedDict(), threading.Lock()
        other.units = self.units.to(device)
        return other

    def in_units(self, units: AsGiven) -> LazyClients:
        """The same people, their inputs in these units."""
        other = self.to(self.device)
        other.units = units.to(self.device)
        return other

    def shaped_like(self, samples: Samples) -> LazyClients:
        """The same people, with public samples that show shape and dtype of theirs."""
        other = self.to(self.device)
        other.like = samples
        return other

    def client(self, j: int) -> Samples:
        """The samples of one client, loaded now or still in memory."""
        with self._lock:
            own = self._loaded.pop(j, None) or self._load(j)
            self._loaded[j] = own
            if len(self._loaded) > self._room:
                self._loaded.popitem(last=False)
            return own

    def take(self, rows: Int64[Tensor, "..."], padded: bool = False) -> Samples:
        """Samples by row; where padded, a row may be written ~row (see ``schedule``)."""
        flat = rows.reshape(-1).cpu().numpy()
        flat = np.where(flat < 0, ~flat, flat) if padded else flat
        owners = np.searchsorted(self.starts + self.sizes, flat, side="right")
        there, parts = np.unique(owners).tolist(), []
        # Whoever trains at once, on whichever thread, is in every step again.
        self._room = max(self._room, len(there) * (os.cpu_count() or 1))
        for j in there:
            own = torch.from_numpy(flat[owners == j] - self.starts[j]).to(self.device)
            parts.append(each(lambda values, own=own: values[own], self.client(j)))
        places = np.argsort(np.argsort(owners, kind="stable"))  # of each row among the parts
        back = torch.from_numpy(places).to(self.device)
        for j, part in zip(there, parts, strict=True):
            # Stacked, whole numbers beside floats would become floats: one person's samples
            # would change what the model sees of another's.
            if kind(part) != kind(parts[0]):
                raise InputError(
                    f"samples of clients {there} cannot be stacked: clients[{j}] has "
                    f"{described(part)}, clients[{there[0]}] {described(parts[0])}; all clients "
                    "train one model, so make them alike"
                )
        together = joined(parts)
        return each(lambda values: values[back].unflatten(0, rows.shape), together)

    def _load(self, j: int) -> Samples:
        dataset, where = self._datasets[j], f"clients[{j}]"
        if self.sizes[j] == 0:
            return torch.empty(0, device=self.device), torch.empty(0, device=self.device)
        places = counted(self._labels[j], len(dataset), self.most_samples, self.seed)
        samples = as_samples(collated([dataset[i] for i in places.tolist()], where), where)
        self.check(j, samples)
        features, targets = each(lambda values: as_input(values).to(self.device), samples)
        return self.units(features), targets


People: TypeAlias = ClientData | LazyClients


def someone(data: Any) -> int:
    """A person with samples, whose shapes stand for everybody's.

    The first; of lazy people the first of a few who can be loaded, since one malformed person must
    not keep a run from starting. Where none can, the first, who then says why.
    """
    there = np.flatnonzero(data.sizes)[:_TRIED].tolist()
    if not there:
        raise InputError("clients hold no samples; give at least one")
    for j in there if isinstance(data, LazyClients) else ():
        try:
            data.client(j)
        except KeyboardInterrupt:
            raise
        except BaseException:  # a loader is a person's code
            continue
        return j
    return there[0]


def example(data: Any) -> Samples:
    """A sample whose shape and dtype stand for everybody's; nothing else of it is looked at."""
    if isinstance(data, LazyClients) and data.like is not None:
        return each(lambda values: as_input(values[:1]), data.like)
    return data.take(torch.tensor([data.starts[someone(data)]]))


def people(clients: Any) -> People:
    """Everybody's data from whatever ``dpfedls.train(clients=…)`` was given."""
    if isinstance(clients, ClientData | LazyClients):
        return clients
    if isinstance(clients, np.ndarray) and clients.dtype == object:
        clients = clients.tolist()  # pairs, or two columns of arrays
    tables = ("columns", "column_names", "dtype", "get_group")
    table = any(hasattr(clients, name) for name in tables)
    # A DataLoader would do, and make a person of every batch: the promise would be for nobody.
    mixed = isinstance(clients, str | Dataset | DataLoader)
    if table or mixed or not hasattr(clients, "__iter__"):
        raise InputError(
            f"clients is a {type(clients).__name__}, which does not say whose sample is whose; "
            "give a list or dict with one (features, targets) pair or one torch Dataset a person, "
            "or ClientData.from_arrays(x, y, users), .from_frame(frame, user=…, target=…) or "
            ".from_dataset(dataset, user=…)"
        )
    everyone = in_order(clients)
    if len(everyone) == 2 and all(hasattr(own, "dtype") for own in everyone):
        raise InputError(
            "clients are two arrays, which do not say whose sample is whose; give zip(x, y) if "
            "their rows are people, ClientData.from_arrays(x, y, users) if they are samples"
        )
    if everyone and all(isinstance(d, TensorDataset) and len(d.tensors) == 2 for d in everyone):
        return ClientData.from_pairs(d.tensors for d in everyone)  # in memory already
    if everyone and all(isinstance(own, Dataset) for own in everyone):
        return LazyClients(everyone)
    return ClientData.from_pairs(everyone)
