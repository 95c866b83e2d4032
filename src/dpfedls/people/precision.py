"""Models that compute in half the bits, and whose weights stay in single precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


def to_precision(tree: Any, dtype: torch.dtype) -> Any:
    """All floating-point tensors of the tree in that precision; whole numbers stay as they are."""
    if not isinstance(tree, Tensor):
        return tree_map_only(Tensor, lambda t: to_precision(t, dtype), tree)
    return tree.to(dtype) if tree.is_floating_point() else tree


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Torch's default for new tensors, and for whole numbers that become floats."""
    before = torch.get_default_dtype()
    if dtype == before:  # the usual case, and the only one that several threads may share
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
