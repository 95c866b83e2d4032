"""Whose threads work: ours, one client each, or torch's, inside one operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch to the thread that calls it.

    Its own threads stay awake for a while after each operation, and would take the cores from ours.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
