"""Everybody's pairs as two arrays, in the memory of one copy and a little more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpfedls.errors import InputError
from dpfedls.people.samples import Samples, as_samples, described, joined, kind

# People whose tensors are held at once: each costs a kilobyte beside its numbers.
_BLOCK = 4096


def stacked(people: Iterable[Any]) -> tuple[Samples, Int64[np.ndarray, "clients"]]:
    """All samples, person by person, and how many each has."""
    sizes: list[int] = []
    blocks: list[Samples] = []
    some: list[Samples] = []
    first: tuple[int, Samples, Any] | None = None
    nobody: Samples | None = None
    for j, pair in enumerate(people):
        part = as_samples(pair, f"clients[{j}]")
        sizes.append(len(part[1]))
        if not sizes[-1]:
            nobody = nobody or part
            continue
        found = kind(part)
        first = first or (j, part, found)
        if found != first[2]:
            raise InputError(
                f"clients[{j}] has {described(part)}, clients[{first[0]}] {described(first[1])}; "
                "all clients train one model, so make them alike"
            )
        some.append(part)
        if len(some) == _BLOCK:
            blocks.append(joined(some))
            some.clear()
    if not sizes:
        raise InputError(
            "clients is empty; there is nobody to train on: give one (features, targets) "
            "pair of tensors a person"
        )
    if some:
        blocks.append(joined(some))
    return _poured(blocks or [joined([nobody])]), np.array(sizes, dtype=np.int64)


def _poured(blocks: list[Samples]) -> Samples:
    """The blocks behind one another; each is freed once it is copied."""
    _, shape = tree_flatten(blocks[0])
    columns = [list(column) for column in zip(*(tree_flatten(b)[0] for b in blocks), strict=True)]
    blocks.clear()
    return tree_unflatten([_joined(column) for column in columns], shape)


def _joined(column: list[Tensor]) -> Tensor:
    if len(column) == 1:
        return column[0]
    dtype = reduce(torch.promote_types, (block.dtype for block in column))
    rows = sum(map(len, column))
    whole = torch.empty((rows, *column[0].shape[1:]), dtype=dtype, device=column[0].device)
    for block in whole.split([len(block) for block in column]):
        block.copy_(column.pop(0))
    return whole
