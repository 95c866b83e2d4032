"""One client's local training as machine code for a CPU, for models that are known chains.

A client's weights stay in the caches of one core through all its steps, nothing passes through
Python between them, and no client's numbers ever share an operation with another's.
"""


class NotCompiled(Exception):
    """There is no machine code for this; the text is the reason, in one line."""
