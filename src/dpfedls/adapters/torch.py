"""Any torch optimiser: the gradients of a step are denoised just before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, strided
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dpfedls.adapters.stream import Stream
from dpfedls.denoising import AnyCallable
from dpfedls.errors import InputError


def denoise_gradients(
    optimizer: Optimizer, denoiser: AnyCallable, noise_stddev: float | Callable[[], float] = 0.0
) -> RemovableHandle:
    """Denoise what ``optimizer.step`` finds in ``p.grad``; the handle's ``remove`` ends it.

    The gradients must be noisy already: then this is post-processing. ``noise_stddev`` is that of
    each coordinate, or a function that says it before each step. A step without any gradient is
    torch's own, which does nothing.
    """
    stream = Stream(denoiser)

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        _refuse_closure(*args, **kwargs)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with_gradient = {str(k): p for k, p in enumerate(parameters) if p.grad is not None}
        if not with_gradient:
            return
        level = noise_stddev() if callable(noise_stddev) else noise_stddev
        gradients = {name: _dense(p) for name, p in with_gradient.items()}
        for name, gradient in stream(gradients, level).items():
            with_gradient[name].grad = gradient

    return optimizer.register_step_pre_hook(hook)


def _refuse_closure(_: Optimizer, closure: object = None, **others: object) -> None:
    if closure is not None:
        raise InputError(
            "step(closure) makes gradients of its own after this hook, so they would not be "
            "denoised; call the closure yourself, then step() (LBFGS needs one: take another "
            "optimiser)"
        )


def _dense(parameter: Tensor) -> Tensor:
    """The gradient, all of it: a sparse one has no noise where nobody's sample was."""
    assert parameter.grad is not None
    if parameter.grad.layout != strided:
        raise InputError(
            f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse, so most of "
            "it carries no noise and tells which rows were used; make it dense before the noise "
            "(Embedding(sparse=False))"
        )
    return parameter.grad
