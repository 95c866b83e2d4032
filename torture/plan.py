"""Which kinds there are, and how many cases each has in the long form."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from torture import folders, shim
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
from torture.security import security
from torture.soak import soak

KINDS: dict[str, tuple[Kind, int]] = {
    "kill": (kills, 300),
    "failpoint": (failpoints, 400),
    "corruption": (corruption, 2_000),
    "disk": (disk, 200),
    "power": (power, 300),
    "fuzz": (fuzz, 30_000),
    "replies": (replies, 20_000),
    "soak": (soak, 10_000),
    "security": (security, 250),
    "noise": (noise, 10_000_000),
    "federation": (federation, 100),
}


def prepare() -> None:
    """Import and compile everything once, before anything is forked."""
    shim.preload()
    # A killed process leaves the same files wherever they lie; in memory no disk is waited for.
    tempfile.tempdir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    import torch

    torch.set_num_threads(1)
    import dpfedls.commands.main  # noqa: F401
    from dpfedls.runs import recipe, simulate
    from dpfedls.runs.verify import verify

    with tempfile.TemporaryDirectory() as place:
        for mode in folders.MODES:
            chosen = recipe.read("synthetic", [*folders.settings(mode, rounds=2)])
            simulate.start(chosen, Path(place) / mode)
            verify(Path(place) / mode)
            folders.epsilon(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        print(f"{threads} threads run before forking: a child may hang", file=sys.stderr)
