"""In which order a client sees its samples: by a key and the client alone."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64


def shuffled(key: int, clients: np.ndarray, size: int, epochs: int) -> Int64[np.ndarray, "c e n"]:
    """For each client and epoch an order of ``size`` samples, from the key and the client alone.

    Sorting hashed counters makes the order a function of (key, client, epoch): it is the same
    whichever clients are trained together.
    """
    hashes = np.uint64(key)
    for axis in (clients.reshape(-1, 1, 1), np.arange(epochs).reshape(-1, 1), np.arange(size)):
        hashes = _mix(hashes + (axis.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN))
    return np.argsort(hashes, axis=-1)


_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): every input bit reaches every output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
