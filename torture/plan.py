"""Which kinds there are, and how many cases each has in the long form."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torture import folders, places, shim
from torture.corruption import corruption
from torture.disk import disk
from torture.failpoints import failpoints
from torture.federation import federation
from torture.fuzz import fuzz
from torture.kills import kills
from torture.noise import noise
from torture.outcome import Kind
from torture.power import power
from torture.replies import replies
from torture.scale import scale
from torture.security import security
from torture.soak import soak

KINDS: dict[str, tuple[Kind, int]] = {
    "corruption": (corruption, 3_400),  # the longest first; three in five are flips and cuts
    "kill": (kills, 300),
    "failpoint": (failpoints, 400),
    "disk": (disk, 200),
    "power": (power, 300),
    "fuzz": (fuzz, 30_000),
    "replies": (replies, 20_000),
    "soak": (soak, 10_000),
    "security": (security, 250),
    "noise": (noise, 10_000_000),
    "scale": (scale, 1_000_000),
    "federation": (federation, 100),
}


ALONE = ("scale", "federation")  # measured, or on both cores already


def order(names: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Which kinds run at the same time, and how many processes they may fill."""
    yield [name for name in names if name not in ALONE], len(os.sched_getaffinity(0))
    yield [name for name in names if name in ALONE], 1


@contextmanager
def prepared() -> Iterator[None]:
    """Import and compile everything once, before anything is forked; a place to work in."""
    # A killed process leaves the same files wherever they lie; in memory no disk is waited for.
    memory = Path("/dev/shm")
    place = places.own(memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir()))
    tempfile.tempdir = str(place)
    try:
        _warm(place)
        yield
    finally:
        places.remove(place)
        shim.remove()


def _warm(place: Path) -> None:
    import torch

    torch.set_num_threads(1)
    import typer

    from dpfedls.commands.main import app
    from dpfedls.runs import recipes, simulate
    from dpfedls.runs.verify import verify

    typer.main.get_command = functools.cache(typer.main.get_command)  # else built for each command
    typer.main.get_command(app)
    for mode in folders.MODES:
        chosen = recipes.read("synthetic", [*folders.settings(mode, rounds=2)])
        simulate.start(chosen, place / mode)
        verify(place / mode)
        folders.epsilon(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        print(f"{threads} threads run before forking: a child may hang", file=sys.stderr)
    # Else each child's first garbage collection writes to every page that it shares with us.
    gc.collect()
    gc.freeze()
