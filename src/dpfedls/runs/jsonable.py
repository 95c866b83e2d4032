"""Values as strict JSON."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Infinity and NaN are not JSON; null says that there is no finite number."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
