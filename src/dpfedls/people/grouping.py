"""Whose sample is whose: rows grouped by the labels of their owners, and how many may count."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpfedls.errors import InputError
from dpfedls.people.orders import shuffled
from dpfedls.randomness import SeededStreams

_CHUNK = 2**16  # labels that are Python objects at the same time
_SORTED = 2**22  # samples of one person that are put in a random order, 0.1 GB, to choose the first


class Groups(NamedTuple):
    """Person j owns rows ``order[starts[j]:starts[j] + sizes[j]]``; without order, those places."""

    labels: Any  # a sequence
    starts: np.ndarray
    sizes: np.ndarray
    order: np.ndarray | None


def grouped(users: Any) -> Groups:
    """The rows of each label, people in the order of their labels; no row is moved."""
    codes, labels = _codes(users)
    begins = _runs(codes)  # rows that lie together stay together: sort runs, not rows
    lengths, heads = np.diff(begins, append=len(codes)), codes[begins]
    by_label = np.argsort(heads, kind="stable")
    begins, lengths, heads = begins[by_label], lengths[by_label], heads[by_label]
    firsts = _runs(heads)  # the first run of each label
    labels = heads[firsts] if labels is None else labels
    if len(firsts) == len(heads):  # everybody's rows lie in one place already
        return Groups(labels, begins, lengths, None)
    order = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    order += np.arange(len(codes))
    sizes = np.add.reduceat(lengths, firsts)
    return Groups(labels, np.cumsum(sizes) - sizes, sizes, order)


def bounded(groups: Groups, most: int | None, seed: int) -> Groups:
    """The same people with at most ``most`` samples each, chosen uniformly among their own.

    A person's choice is a function of the seed, the person's label and the person's number of
    samples: who else is there, and under which number, has no part in it.
    """
    if most is None:
        return groups
    require_count(most)
    kept = np.minimum(groups.sizes, most)
    starts = np.cumsum(kept) - kept
    rows = np.empty(kept.sum(), dtype=np.int64)
    for size in np.unique(groups.sizes).tolist():
        group = np.flatnonzero(groups.sizes == size)
        if size <= most:
            chosen = np.arange(size)
        else:
            chosen = choice([groups.labels[j] for j in group], size, most, seed)
        own = groups.starts[group, None] + chosen
        own = own if groups.order is None else groups.order[own]
        rows[starts[group, None] + np.arange(min(size, most))] = own
    return Groups(groups.labels, starts, kept, rows)


def choice(labels: Iterable[Any], size: int, most: int, seed: int) -> np.ndarray:
    """For each label which ``most`` of ``size`` samples count, in their order.

    One rule for simulations and nodes. A node does not yet know whether somebody has as many
    samples as they say, so beyond ``_SORTED`` memory follows ``most``, whatever ``size`` is.
    """
    stream = SeededStreams(seed).generator("contribution")
    key = int(stream.integers(2**64, dtype=np.uint64))
    people = np.array([_number(label) for label in labels], dtype=np.uint64)
    if size <= _SORTED:
        return np.sort(shuffled(key, people, size, 1)[:, 0, :most], axis=1)
    rngs = (np.random.default_rng([key, person]) for person in people.tolist())
    return np.sort([rng.choice(size, most, replace=False, shuffle=False) for rng in rngs], axis=1)


def counted(label: Any, size: int, most: int | None, seed: int) -> np.ndarray:
    """Which of one person's samples count: all of them, or ``most`` by ``choice``."""
    if most is None or size <= most:
        return np.arange(size)
    return choice([label], size, most, seed)[0]


def require_count(most: Any) -> None:
    """Refuse a bound that nobody could meet or that is no number."""
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise InputError(
            f"most_samples must be a whole number > 0, got {most!r}; it bounds how many samples "
            "of one person count: None lets all of them count"
        )


def _codes(users: Any) -> tuple[np.ndarray, Sequence[Any] | None]:
    """A number for each row: whole numbers as they are, others by their labels' own order."""
    if not hasattr(users, "__iter__"):
        raise InputError(
            f"users is {users!r}; give one label for every sample, so that each has one owner"
        )
    labels = np.asarray(users) if hasattr(users, "__array__") else list(users)
    if isinstance(labels, np.ndarray) and labels.ndim != 1:
        raise InputError(
            f"users has shape {labels.shape}; give one label for every sample, so that each has "
            "one owner"
        )
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
        return labels, None
    codes = np.empty(len(labels), dtype=np.int64)
    numbers = defaultdict(itertools.count().__next__)  # a new label gets the next number
    for start in range(0, len(labels), _CHUNK):
        part = labels[start : start + _CHUNK]
        part = part.tolist() if isinstance(part, np.ndarray) else part
        try:
            found = np.fromiter(map(numbers.__getitem__, part), np.int64, len(part))
        except TypeError as error:
            raise InputError(
                f"users holds a label that cannot be hashed ({error}); name people by numbers or "
                "strings"
            ) from error
        codes[start : start + len(part)] = found
    missing = [label for label in numbers if _is_missing(label)]
    if missing:
        raise InputError(
            f"users has no label at row {int(np.argmax(codes == numbers[missing[0]]))}; a sample "
            "without an owner cannot be protected: name its owner or leave it out"
        )
    try:
        ranked = sorted(numbers)
    except TypeError:  # labels of several kinds have no order but that in which they came
        ranked = list(numbers)
    ranks = np.empty(len(numbers), dtype=np.int64)
    ranks[[numbers[label] for label in ranked]] = np.arange(len(numbers))
    return ranks[codes], ranked


def _runs(codes: np.ndarray) -> np.ndarray:
    """Where each run of one label begins."""
    return np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])[: len(codes)]


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ in ("NAType", "NaTType") or label != label


def _number(label: Any) -> int:
    """A label as 64 bits, the same in every process."""
    if isinstance(label, int | np.integer):
        return int(label) % 2**64
    return int.from_bytes(hashlib.blake2b(str(label).encode(), digest_size=8).digest())
