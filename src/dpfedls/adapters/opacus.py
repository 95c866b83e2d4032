"""Opacus (tried with 1.6.0): DP-SGD with Laplacian smoothing, DP-SGD-LS."""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import RemovableHandle

from dpfedls.adapters.torch import denoise_gradients
from dpfedls.denoising import AnyCallable


def denoise_steps(optimizer: Any, denoiser: AnyCallable) -> RemovableHandle:
    """Denoise each noisy gradient of the optimiser that ``PrivacyEngine.make_private`` returned.

    Opacus clips, adds noise and only then steps its ``original_optimizer``, where this hooks in. So
    ε stays what Opacus says, and batches whose step is skipped are not seen.
    """

    def level() -> float:
        total = optimizer.noise_multiplier * optimizer.max_grad_norm
        if optimizer.loss_reduction == "sum":
            return total
        return total / (optimizer.expected_batch_size * optimizer.accumulated_iterations)

    return denoise_gradients(optimizer.original_optimizer, denoiser, level)
