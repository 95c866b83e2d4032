"""What model.safetensors says of itself, so that it can be held against the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors

from dpfedls.errors import InputError
from dpfedls.privacy.bounded import TENSORS, read_bounded


def model_metadata(mode: str, trained: Sequence[str]) -> dict[str, str]:
    """The mode, and the trained tensors in the order of the flat vector.

    safetensors sorts tensors by name and keeps no order among metadata keys: one key holds all.
    """
    return {"dpfedls": json.dumps({"mode": mode, "trained": list(trained)})}


def trained_vector(path: Path) -> np.ndarray:
    """The trained tensors of a model file as one flat vector."""
    raw = read_bounded(path, TENSORS)
    try:
        tensors = load_tensors(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        names = json.loads(header["__metadata__"]["dpfedls"])["trained"]
        return np.concatenate([tensors[name].reshape(-1) for name in names])
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path.name} is not a model that dpfedls wrote ({error}); write it again from the "
            f"checkpoint: dpfedls resume {path.parent}"
        ) from error
