"""Where the files of a data set are; a missing one is named with the place it belongs."""

from __future__ import annotations

import os
from pathlib import Path

from dpfedls.errors import InputError


def data_file(data_set: str, name: str) -> Path:
    """The path of a data set's file under the folder that DPFEDLS_DATA names."""
    folder = os.environ.get("DPFEDLS_DATA")
    if not folder:
        raise InputError(
            f"the file {data_set}/{name} is needed, and DPFEDLS_DATA does not say where it is; set "
            f"it to the folder that holds {data_set}/"
        )
    path = Path(folder) / data_set / name
    if not path.is_file():
        raise InputError(
            f"{path} is not there; put it there, or set DPFEDLS_DATA to the folder that holds "
            f"{data_set}/{name}"
        )
    return path
