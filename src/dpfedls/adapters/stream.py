"""Named tensors, round after round, through a denoiser that may remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from dpfedls.denoisers import JamesStein, SoftThreshold
from dpfedls.denoising import AnyCallable, Memory, denoise, first_memory
from dpfedls.errors import InputError
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout


@dataclass
class Stream:
    """What comes from another library's mechanism, denoised.

    The memory lives as long as this object: another library's checkpoint does not hold it.
    """

    denoiser: AnyCallable
    round: int = 0
    memory: Memory | None = None
    first: Layout | None = None  # what the memory was made for

    def __call__(self, tensors: Mapping[str, Tensor], noise_stddev: float) -> dict[str, Tensor]:
        """The tensors denoised, in the same shapes; ``noise_stddev`` is that of each coordinate."""
        if noise_stddev == 0 and isinstance(self.denoiser, JamesStein | SoftThreshold):
            raise InputError(
                f"{type(self.denoiser).__name__} needs to know how much noise there is; give "
                "noise_stddev, or use LaplacianSmoothing, which does not"
            )
        layout = Layout(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))
        value = layout.join(tensors).float()  # as every release; memory is float32 too
        if self.memory is None:
            memory = first_memory(self.denoiser, layout)
            self.memory = {name: tensor.to(value.device) for name, tensor in memory.items()}
            self.first = layout
        elif self.memory and layout != self.first:
            raise InputError(
                f"{type(self.denoiser).__name__} remembers the tensors of its first step, and this "
                "step has others, a head without gradient, say; denoise the two sets apart, each "
                "with a denoiser of its own, or use LaplacianSmoothing, which does not remember"
            )
        release = Release(value, noise_stddev, layout, self.round)
        direction, self.memory = denoise(self.denoiser, release, self.memory)
        self.round += 1
        pieces = layout.split(direction)
        return {name: pieces[name].to(tensor.dtype) for name, tensor in tensors.items()}
