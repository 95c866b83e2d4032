"""One named stream of randomness per purpose and round.

In simulation every stream is a function of ``(seed, purpose, round)`` and nothing is carried from
round to round, so a resumed run is the same run. When deployed, everything that privacy rests on
comes from the operating system's entropy through a cryptographic generator, and no seed matters.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dpfedls.errors import InputError, unknown

Noise: TypeAlias = Callable[[int, torch.device], Float[Tensor, "dim"]]
"""``noise(dim, device)`` draws standard normals in float64, for one release and no other."""

_PURPOSES = (
    "sampling", "shuffling", "noise", "model", "split", "partition", "attack", "contribution",
)  # fmt: skip


@runtime_checkable
class RandomStreams(Protocol):
    """Where a run's randomness comes from."""

    def sampling(self, round_: int) -> np.random.Generator:
        """Who takes part."""
        ...

    def shuffling(self, round_: int) -> int:
        """A 64-bit key for the order in which clients see their samples."""
        ...

    def noise(self, round_: int) -> Noise:
        """The noise of the round's release."""
        ...

    def nonce(self, round_: int, device: torch.device) -> str:
        """A name for the noise: two releases with one nonce carry the very same noise."""
        ...


class SeededStreams:
    """Reproducible streams, for simulation only: who knows the seed knows the noise."""

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise InputError(f"seed must be >= 0, got {seed}; any whole number from 0 up will do")
        self.seed = seed

    def generator(self, purpose: str, round_: int = 0) -> np.random.Generator:
        """A NumPy generator for a purpose in a round."""
        if purpose not in _PURPOSES:
            known = f"known: {', '.join(_PURPOSES)}"
            raise unknown("purpose of a random stream", purpose, _PURPOSES, known)
        key = (_PURPOSES.index(purpose), round_)
        sequence = np.random.SeedSequence(self.seed, spawn_key=key)
        return np.random.Generator(np.random.Philox(sequence))

    def torch_generator(
        self, purpose: str, round_: int = 0, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """The same as a torch generator, on the device where the numbers are needed."""
        seed = int(self.generator(purpose, round_).integers(2**63))
        return torch.Generator(device).manual_seed(seed)

    def sampling(self, round_: int) -> np.random.Generator:
        return self.generator("sampling", round_)

    def shuffling(self, round_: int) -> int:
        return int(self.generator("shuffling", round_).integers(2**64, dtype=np.uint64))

    def noise(self, round_: int) -> Noise:
        return functools.partial(self._normal, round_)

    def _normal(self, round_: int, dim: int, device: torch.device) -> Float[Tensor, "dim"]:
        if device.type != "cpu":
            rng = self.torch_generator("noise", round_, device)
            return torch.randn(dim, generator=rng, device=device).double()
        # Torch's generator on the CPU keeps 32 bits of a seed, too few to tell many runs apart.
        return torch.from_numpy(self.generator("noise", round_).standard_normal(dim))

    def nonce(self, round_: int, device: torch.device) -> str:
        drawn_by = "" if device.type == "cpu" else f" on {device.type}"  # another generator
        return f"simulation seed {self.seed} round {round_}{drawn_by}"


class SystemStreams:
    """Streams for deployment: operating-system entropy, never stored, the same for no two calls."""

    def __init__(self) -> None:
        try:
            import randomgen
        except ImportError as error:
            raise InputError(
                "deployed noise needs the package randomgen, which is not installed; "
                "without it noise could be predicted; run: pip install 'dpfedls[secure]'"
            ) from error
        self._aes = randomgen.AESCounter

    def _generator(self) -> np.random.Generator:
        # The key carries 128 bits of entropy; the counter starts at zero under a fresh key.
        return np.random.Generator(self._aes(key=secrets.randbits(128)))  # pyright: ignore[reportArgumentType]

    def sampling(self, round_: int) -> np.random.Generator:
        return self._generator()

    def shuffling(self, round_: int) -> int:
        return secrets.randbits(64)

    def noise(self, round_: int) -> Noise:
        return self._normal

    def _normal(self, dim: int, device: torch.device) -> Float[Tensor, "dim"]:
        # The sum of four normals, halved, is one normal whose low bits no longer tell which
        # floating-point numbers can and cannot occur (Holohan and Braghin 2021, Section 3.3).
        rng = self._generator()
        total = rng.standard_normal(dim)
        part = np.empty(dim)
        for _ in range(3):
            total += rng.standard_normal(out=part)
        return torch.from_numpy(total).mul_(0.5).to(device)

    def nonce(self, round_: int, device: torch.device) -> str:
        return secrets.token_hex(16)
