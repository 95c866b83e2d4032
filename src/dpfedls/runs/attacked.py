"""SENSITIVE: attack.json, what a membership attack found out about a simulated run.

It is made from private samples without noise, so a deployed run has none.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dpfedls.errors import InputError
from dpfedls.privacy.bounded import SETTINGS, read_bounded
from dpfedls.privacy.durable import PRIVATE, write_whole

FILE = "attack.json"


class Attacked(msgspec.Struct, frozen=True):
    """How well a threshold on the loss tells members from others: the ROC and its area."""

    auc: float
    members: int
    false_positive_rate: list[float]
    true_positive_rate: list[float]


def keep_attack(folder: Path, found: Attacked) -> None:
    """Write it beside the run; only who owns the folder can read it."""
    write_whole(folder / FILE, msgspec.json.encode(found) + b"\n", PRIVATE)


def read_attack(folder: Path) -> Attacked | None:
    """What an attack on this run found, if there was one."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(read_bounded(path, SETTINGS), type=Attacked)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is damaged ({error}); remove it, or attack the run again"
        ) from error
