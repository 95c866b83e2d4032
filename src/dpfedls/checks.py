"""What a model must be to train with user-level privacy, and help for one that is not."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from dpfedls.clients import as_input
from dpfedls.errors import InputError

_RECURRENT = (nn.RNNBase,)
_ROWS = 2**14
_DROPOUT = (nn.modules.dropout._DropoutNd,)


def check_model(model: nn.Module) -> None:
    """Refuse, by name, modules whose state would leave un-noised or that clients cannot share."""
    for name, module in model.named_modules():
        where = f"module {name!r} ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"{where} keeps running statistics of private data, which would leave without "
                "noise; use GroupNorm: model = dpfedls.replace_batch_norm(model)"
            )
        if isinstance(module, _RECURRENT):
            raise InputError(
                f"{where} cannot be trained for many clients at once (torch has no batching rule "
                "for it); use dpfedls.tasks.models.LSTM, which writes the cell out"
            )
        if isinstance(module, _DROPOUT) and module.p > 0:
            raise InputError(
                f"{where} draws from torch's global generator, so a run could not be repeated or "
                "resumed; set its p to 0 (clipping and noise regularise already)"
            )
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise InputError(
            f"buffer {buffers[0]!r} is neither trained nor noised, so it must not change on "
            "private data; make it a plain attribute or a Parameter with requires_grad=False"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("the model has no parameter that requires a gradient; nothing to train")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(
                f"parameter {name!r} has no shape yet; call the model once on a sample first"
            )
        if parameter.dtype != torch.float32:
            raise InputError(
                f"parameter {name!r} is {parameter.dtype}; updates are made, clipped and summed "
                "from float32: use model.float()"
            )
        if not torch.isfinite(parameter).all():
            raise InputError(f"parameter {name!r} is not finite; start from a model that is")


def check_samples(
    model: nn.Module, features: Tensor, targets: Tensor, where: str, *, classify: bool = True
) -> None:
    """Refuse samples that the model cannot learn from, saying where they are."""
    if len(targets) == 0:
        raise InputError(f"{where} holds no samples; give at least one")
    if len(features) != len(targets):
        raise InputError(
            f"{where} has {len(features)} rows of features but {len(targets)} targets; give one "
            "target for every row"
        )
    symbols = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    if not features.is_floating_point() and not symbols and not _takes(model, features[:1]):
        raise InputError(
            f"{where} has features of {features.dtype}, but the model needs floats; "
            "convert them with x.float()"
        )
    if not features.is_floating_point() and symbols:
        known = max(m.num_embeddings for m in symbols)
        low, high = int(features.min()), int(features.max())
        if low < 0 or high >= known:
            raise InputError(
                f"{where} has symbols from {low} to {high}, but the model's embedding knows 0 to "
                f"{known - 1}: renumber them, or widen the embedding"
            )
    elif features.is_floating_point():
        if features.dtype != torch.float32:
            raise InputError(
                f"{where} has features of {features.dtype}, but models are float32; convert them "
                "with x.float()"
            )
        parts = features.split(_ROWS)  # not all at once: the data may be most of the memory
        broken = torch.cat([~torch.isfinite(part).flatten(1).all(dim=1) for part in parts])
        if broken.any():
            raise InputError(
                f"{where} has {int(broken.sum())} samples with NaN or infinite features, the first "
                f"at row {int(broken.nonzero()[0])}; they would spoil every average: remove or "
                "mend them"
            )
    if not classify:
        return
    if targets.is_floating_point() or targets.dim() != 1:
        raise InputError(
            f"{where} has targets of {targets.dtype} and {targets.dim()} dimensions; cross-entropy "
            "needs one integer label a sample: use y.long(), or pass loss=…"
        )
    try:
        with torch.no_grad():
            classes = model(as_input(features[:1])).shape[-1]
    except RuntimeError as error:
        raise InputError(
            f"the model cannot be fed a sample of {where}, of shape {tuple(features.shape[1:])} "
            f"({str(error).splitlines()[0]}); make model and features fit"
        ) from error
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"{where} has labels from {low} to {high}, but the model has {classes} outputs; labels "
            f"must be 0 to {classes - 1}: relabel, or widen the last layer"
        )


@torch.no_grad()
def _takes(model: nn.Module, features: Tensor) -> bool:
    """Whether the model itself makes floats of whole numbers, as of images stored as bytes."""
    try:
        model(as_input(features))
    except RuntimeError:
        return False
    return True


def replace_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm, at most ``groups`` groups, in place of BatchNorm."""
    model = copy.deepcopy(model)
    if isinstance(model, nn.modules.batchnorm._BatchNorm):
        return _group_norm(model, groups)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, _group_norm(child, groups))
    return model


def _group_norm(norm: nn.Module, groups: int) -> nn.GroupNorm:
    channels = int(norm.num_features)  # pyright: ignore[reportArgumentType]
    new = nn.GroupNorm(math.gcd(groups, channels), channels, eps=float(norm.eps))  # pyright: ignore
    if norm.affine:
        with torch.no_grad():
            new.weight.copy_(norm.weight)  # pyright: ignore[reportArgumentType]
            new.bias.copy_(norm.bias)  # pyright: ignore[reportArgumentType]
    return new
