"""A server state on disk: written whole or not at all, and any altered byte is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from dpfedls.errors import InputError
from dpfedls.privacy.bounded import TENSORS, read_bounded
from dpfedls.privacy.durable import swap_in

FILE = Path("checkpoint") / "state.safetensors"


class Checkpoint(NamedTuple):
    """A server state, and the heads of the ledger and of the log when it was reached.

    ``unwritten`` is the line that the log does not have yet: the round is still to be evaluated.
    """

    round: int
    params: np.ndarray
    average: np.ndarray
    clip_norm: float
    memory: dict[str, np.ndarray]
    ledger_head: str
    log_head: str = ""  # nothing is known of the log where it is empty
    unwritten: str = ""

    @property
    def lines(self) -> int:
        """How many lines of the log it knows."""
        return self.round - bool(self.unwritten)

    @property
    def diverged(self) -> bool:
        """Whether no round can follow: the model is not finite."""
        return not np.isfinite(self.params).all()

    def save(self, folder: Path) -> None:
        """Write the checkpoint of a run folder; a crash leaves the old one or the new one."""
        swap_in(folder / FILE, self._bytes())

    def _bytes(self) -> bytes:
        tensors = {"params": self.params, "average": self.average}
        tensors |= {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        heads = f"{self.ledger_head} {self.clip_norm!r} {self.log_head} {self.unwritten}"
        public = f"{self.round} {heads}".rstrip()
        seal = hashlib.sha256(public.encode())
        for name in sorted(tensors):
            seal.update(f"\n{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
            seal.update(np.ascontiguousarray(tensors[name]).data)
        # safetensors keeps no order among metadata keys, so what is to be sealed goes in one.
        return save_tensors(tensors, {"state": f"{public} {seal.hexdigest()}"})

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Read a run folder's checkpoint; refuse it if a single byte is not as it was written."""
        path = folder / FILE
        raw = read_bounded(path, TENSORS)
        try:
            tensors = load_tensors(raw)
            round_, head, norm, *log, _ = _metadata(raw).split(" ")
            params, average = tensors.pop("params"), tensors.pop("average")
            memory = {name.removeprefix("memory."): tensor for name, tensor in tensors.items()}
            found = cls(int(round_), params, average, float(norm), memory, head, *log)
        except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
            raise InputError(_DAMAGED.format(path=path)) from error
        if found._bytes() != raw:
            raise InputError(_DAMAGED.format(path=path))
        return found


_DAMAGED = (
    "{path} is damaged: it is not as it was written; going on from it would train a model that no "
    "round released: restore the file from a backup or start a new run"
)


def _metadata(raw: bytes) -> str:
    """safetensors' NumPy reader drops metadata; the header is 8 bytes of length, then JSON."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length])["__metadata__"]["state"]
