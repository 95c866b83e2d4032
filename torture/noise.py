"""Noise at ten million draws: what the audit asks of it, of both sources."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dpfedls.auditing.noise import FALSE_ALARMS, noise_problems
from dpfedls.randomness import RandomStreams, SeededStreams, SystemStreams
from torture.outcome import Outcome
from torture.watched import watch_noise

_ROUNDS = 64


def noise(cases: int, seed: int) -> Outcome:
    """So many draws of each source, as the releases of 64 rounds."""
    found = Outcome(cases=2 * cases, note=f"draws; false alarms at most {2 * FALSE_ALARMS:g}")
    watch_noise(Path("/dev/null"))  # other kinds may have left it at a file that is gone
    dim = max(1_000, cases // _ROUNDS)
    sources: dict[str, RandomStreams] = {
        "simulation": SeededStreams(seed),
        "deployed": SystemStreams(),
    }
    for name, source in sources.items():
        draws = np.stack(
            [source.noise(t)(dim, torch.device("cpu")).numpy() for t in range(_ROUNDS)]
        )
        found.violations += [f"{name}: {problem}" for problem in noise_problems(draws)]
    return found
