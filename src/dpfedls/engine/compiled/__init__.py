"""One client's local training as machine code for a CPU, for models made of known layers.

A client's weights stay in the caches of one core through all its steps, nothing passes through
Python between them, and no client's numbers ever share an operation with another's.
"""

from __future__ import annotations


class NotCompiled(Exception):
    """A model, loss or setting that has no compiled form; the message is the reason, in a line."""
