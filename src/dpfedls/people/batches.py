"""How wide batches are laid out in memory."""

from __future__ import annotations

_SMALL = 256  # up to here batches are as wide as they are asked to be


def batch_width(batch_size: int, size: int) -> int:
    """The batch size, or less where it is large and a client of ``size`` samples cannot fill it.

    Batches of twenty million would otherwise be made for people of ten samples. The width is a
    function of the client alone, so nobody's samples change how another's sums are rounded; powers
    of two, so that few widths occur and clients can still train side by side.
    """
    return min(batch_size, max(_SMALL, 1 << (size - 1).bit_length()))
