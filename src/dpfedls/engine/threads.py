"""Whose threads work: ours, one client each, or torch's, inside one operation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_mine = threading.local()  # how deep this thread is inside
_threads_inside, _usual = 0, 1


def usual_threads() -> int:
    """How many threads torch has when nobody keeps it to one."""
    with _lock:
        return _usual if _threads_inside else torch.get_num_threads()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch to the thread that calls it.

    Its own threads stay awake for a while after each operation, and would take the cores from ours.
    Several threads may be inside, and a thread several times.
    """
    global _threads_inside, _usual
    if getattr(_mine, "inside", False):
        yield
        return
    with _lock:  # a thread's count is what a new thread begins with: nobody looks in between
        _usual = _usual if _threads_inside else torch.get_num_threads()
        _threads_inside += 1
        torch.set_num_threads(1)
    _mine.inside = True
    try:
        yield
    finally:
        _mine.inside = False
        with _lock:
            _threads_inside -= 1
            torch.set_num_threads(_usual)
