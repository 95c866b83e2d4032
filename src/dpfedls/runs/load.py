"""The trained weights of a run, in a person's own module."""

from __future__ import annotations

import copy
import hashlib
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from dpfedls.errors import InputError
from dpfedls.privacy.bounded import TENSORS, read_bounded
from dpfedls.runs.folder import path_of
from dpfedls.runs.seal import STATEMENT
from dpfedls.runs.verify import read_statement


def load(folder: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """A copy of ``model`` with the weights that the run of a folder ended with."""
    folder = path_of(folder, "folder")
    path = folder / "model.safetensors"
    require_model(folder)
    if not path.is_file():
        raise InputError(
            f"{path} is not there: the run is not finished, or this is no run folder; finish it "
            f"with the call that started it, or: dpfedls resume {folder}"
        )
    raw = read_bounded(path, TENSORS)
    files = read_statement(folder).get("files")
    if not isinstance(files, dict) or files.get(path.name) != hashlib.sha256(raw).hexdigest():
        raise InputError(
            f"{path} is not the file that privacy.json was made from, so nobody knows what these "
            f"weights cost; write it again from the checkpoint: dpfedls resume {folder}"
        )
    try:
        tensors = load_tensors(raw)
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a backup") from error
    loaded = copy.deepcopy(model)
    own = dict(loaded.named_parameters())
    wrong = sorted(own.keys() ^ tensors.keys()) or [
        name for name, mine in own.items() if mine.shape != tensors[name].shape
    ]
    if wrong:
        raise InputError(
            f"{path} holds another model: {wrong[0]!r} is missing or has another shape; give the "
            "module that was trained"
        )
    loaded.load_state_dict(tensors, strict=False)  # buffers are constants and stay
    return loaded


def require_model(folder: Path) -> None:
    """Refuse the folder of a run that ended without a model."""
    if (folder / STATEMENT).is_file() and (ended := read_statement(folder).get("ended")):
        raise InputError(
            f"{folder} has no model: {ended['because']} (round {ended['round']}); lower the "
            "learning rate or server_rate in a new run"
        )
