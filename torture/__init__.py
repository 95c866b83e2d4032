"""What the system withstands, shown: ``python -m torture``, or ``make torture``."""
