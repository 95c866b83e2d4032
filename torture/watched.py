"""Every draw of noise written down before it is made, from outside the product."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import randomgen

from dpfedls import randomness

_PLACE: list[Path] = []


def watch_noise(file: Path) -> None:
    """From now on this process and its children write each draw and each key to the file."""
    if not _PLACE:
        _wrap()
    _PLACE[:] = [file]


def draws(file: Path) -> int:
    """How many releases drew noise."""
    return _lines(file)["noise"]


def keys_used_twice(file: Path) -> list[str]:
    """Keys of the deployed generator that came again."""
    return [key for key, count in _lines(file).items() if key != "noise" and count > 1]


def _lines(file: Path) -> Counter[str]:
    return Counter(file.read_text().splitlines() if file.is_file() else [])


def _write(line: str) -> None:
    # One small write to a file opened for appending is whole even if the next step is kill -9.
    handle = os.open(_PLACE[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def _wrap() -> None:
    for kind in (randomness.SeededStreams, randomness.SystemStreams):
        kind.noise = _noted(kind.noise)  # type: ignore[method-assign]
    real = randomgen.AESCounter

    def generator(*, key: int) -> object:
        _write(f"{key:032x}")
        return real(key=key)

    randomgen.AESCounter = generator  # type: ignore[assignment,misc]


def _noted(real):
    def noise(self, round_: int) -> randomness.Noise:
        draw = real(self, round_)

        def written(dim, device):
            _write("noise")
            return draw(dim, device)

        return written

    return noise
