"""One runner a system; each prints one JSON line a round (see measure.py)."""
