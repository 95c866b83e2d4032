"""Any torch optimiser: the gradients of a step are denoised just before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dpfedls.adapters.stream import Stream
from dpfedls.denoising import AnyCallable


def denoise_gradients(
    optimizer: Optimizer, denoiser: AnyCallable, noise_stddev: float | Callable[[], float] = 0.0
) -> RemovableHandle:
    """Denoise what ``optimizer.step`` finds in ``p.grad``; the handle's ``remove`` ends it.

    The gradients must be noisy already: then this is post-processing. ``noise_stddev`` is that of
    each coordinate, or a function that says it before each step.
    """
    stream = Stream(denoiser)

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with_gradient = {str(k): p for k, p in enumerate(parameters) if p.grad is not None}
        level = noise_stddev() if callable(noise_stddev) else noise_stddev
        gradients = {name: p.grad for name, p in with_gradient.items()}
        for name, gradient in stream(gradients, level).items():
            with_gradient[name].grad = gradient

    return optimizer.register_step_pre_hook(hook)
