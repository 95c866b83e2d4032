"""Which of its samples a client sees in each step, and how wide batches are in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from dpfedls.people.orders import shuffled
from dpfedls.sampling import Indices

if TYPE_CHECKING:
    from dpfedls.local_sgd import LocalSGD, Rows

_SMALL = 256  # up to here batches are as wide as they are asked to be


def schedule(
    local: LocalSGD, data: Rows, clients: Indices, key: int
) -> tuple[Indices, list[Int64[np.ndarray, "group steps batch"]]]:
    """Which rows of the data each client sees in each step.

    The first array puts the clients in the order of how long they train. The others hold, for each
    size in that order, the rows of all clients of that size. A last short batch is filled with the
    client's own first row, written ~row and counted with weight 0: a model that cannot take zeros
    can take it, and it is nobody else's.
    A client's rows depend on the key and the client alone, not on who else is in the block, and
    all of them together take no more memory than the samples to be seen.
    """
    sizes, groups = data.sizes[clients], []
    most = local.steps or local.most_steps
    for size in np.unique(sizes).tolist():
        group, width = clients[sizes == size], batch_width(local.batch_size, size)
        per_pass = -(-size // width)  # the last short batch included
        enough = -(-most // max(per_pass, 1)) if most else math.inf  # passes for so many batches
        passes = int(min(local.epochs or enough, enough))
        rows = np.empty((len(group), passes, per_pass * width), dtype=np.int64)
        rows[..., size:] = ~data.starts[group, None, None]
        rows[..., :size] = shuffled(key, group, size, passes)
        rows[..., :size] += data.starts[group, None, None]
        rows = rows.reshape(len(group), passes * per_pass, width)
        groups.append(rows[:, :most])
    return np.argsort(sizes, kind="stable"), groups


def batch_width(batch_size: int, size: int) -> int:
    """The batch size, or less where it is large and a client of ``size`` samples cannot fill it.

    Batches of twenty million would otherwise be made for people of ten samples. The width is a
    function of the client alone, so nobody's samples change how another's sums are rounded; powers
    of two, so that few widths occur and clients can still train side by side.
    """
    return min(batch_size, max(_SMALL, 1 << (size - 1).bit_length()))
