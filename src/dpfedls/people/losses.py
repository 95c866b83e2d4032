"""What training asks of a loss: one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxtyping import Float
from torch import Tensor, nn

from dpfedls.errors import InputError

Loss: TypeAlias = Callable[[Any, Any], Float[Tensor, "samples"]]
"""``loss(outputs, targets)`` gives one loss per sample, of whatever the model returns."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Float[Tensor, "samples"]:
    """The default loss."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def require_one_loss_per_sample(losses: Any, samples: int) -> None:
    """Refuse what does not say each sample's loss, and say how to get there."""
    if not isinstance(losses, Tensor):
        raise InputError(
            f"loss gave a {type(losses).__name__}; training needs a tensor with one loss per "
            "sample: let loss(outputs, targets) pick what it needs from the model's outputs"
        )
    shape = tuple(losses.shape)
    if shape == (samples,):
        return
    if not shape:
        remedy = "use reduction='none'"
    elif shape == (samples, 1):
        remedy = "squeeze it: loss(outputs, targets).squeeze(-1)"
    elif shape == (samples, samples):
        remedy = (
            "outputs of shape (batch, 1) beside targets of shape (batch,) give every pair of "
            "samples: use outputs.squeeze(-1); else average over the other dimensions"
        )
    elif shape[0] == samples:
        remedy = "average over the other dimensions: loss(outputs, targets).flatten(1).mean(1)"
    else:
        remedy = f"its first and only dimension must be the {samples} samples"
    raise InputError(
        f"loss gave a tensor of shape {shape} for a batch of {samples}; it must give one loss per "
        f"sample, because padding in a short batch is ignored: {remedy}"
    )
