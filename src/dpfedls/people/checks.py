"""What a model and its samples must be to train with user-level privacy; else one line why."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.errors import InputError
from dpfedls.people.clients import ClientData
from dpfedls.people.fit import check_fit, check_values
from dpfedls.people.lazy import LazyClients, someone
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import Samples, as_samples
from dpfedls.people.stateful import kept, snapshot

log = logging.getLogger("dpfedls")
_ROWS = 2**14  # not all at once: the data may be most of the memory


def check_model(model: nn.Module) -> None:
    """Refuse, by name, what would leave without noise or cannot be repeated.

    A BatchNorm in eval mode is a constant and stays. Dropout is to be 0: clipping and noise
    regularise already, and every client's masks would have to be drawn apart from all others'.
    """
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise InputError(
            f"the model is a {type(model).__name__}, whose layers cannot be looked into; give the "
            "nn.Module that torch.jit or torch.compile made it from"
        )
    for name, module in model.named_modules():
        where = f"module {name!r} ({type(module).__name__})"
        if keeps_statistics(module):
            raise InputError(
                f"{where} keeps running statistics of private data, which would leave without "
                "noise; use GroupNorm: model = dpfedls.prepare(model), or freeze it by .eval()"
            )
        if module.training and dropout_of(module) > 0:
            raise InputError(
                f"{where} has dropout {dropout_of(module):g}, whose masks come from torch's global "
                "generator, so a run could not be repeated; set it to 0: model = "
                "dpfedls.prepare(model) (clipping and noise regularise already)"
            )
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        log.warning(
            "recurrent layers train one client at a time; dpfedls.prepare(model) speeds them"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            "the model has no parameter that requires a gradient; there is nothing to train: use "
            "requires_grad_()"
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(
                f"parameter {name!r} has no shape yet; call the model once on a sample first"
            )
        if parameter.is_meta:
            raise InputError(
                f"parameter {name!r} is on the device meta and has no values; load its weights"
            )
        if parameter.dtype != torch.float32:
            raise InputError(
                f"parameter {name!r} is {parameter.dtype}; updates are made, clipped and summed "
                "from float32: use model.float()"
            )
        if not torch.isfinite(parameter).all():
            raise InputError(f"parameter {name!r} is not finite; start from a model that is")
    try:
        copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"the model cannot be copied ({str(error).splitlines()[0][:200]}), and every client "
            "trains a copy: take out what is no parameter, buffer or plain value; for weight_norm "
            "use torch.nn.utils.parametrizations"
        ) from error


def keeps_statistics(module: nn.Module) -> bool:
    """Whether it is a BatchNorm that looks at the batch."""
    batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return batch_norm and (module.training or module.running_mean is None)


def dropout_of(module: nn.Module) -> float:
    """The share that it drops while training."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    return module.dropout if isinstance(module, nn.MultiheadAttention | nn.RNNBase) else 0.0


def check_samples(model: nn.Module, data: Any, where: str, loss: Loss = cross_entropy) -> None:
    """Refuse samples that the model cannot learn from: a pair's, or each person's alone.

    Refuses a model or a loss of which copies share what they keep: engines give each person a copy,
    so that nothing of one person's samples reaches another's update.
    """
    before = snapshot(model, loss)
    _try(model, data, where, loss)
    if shared := kept(before, snapshot(model, loss)):
        raise InputError(
            f"{shared}, which its copies share, so one person's samples would reach another's "
            "update, without noise; make it a function of its inputs alone, or keep that in an "
            "attribute of the object"
        )


def _try(model: nn.Module, data: Any, where: str, loss: Loss) -> None:
    copies = partial(_copies, model, loss)
    if isinstance(data, LazyClients):

        def check(j: int, own: Samples) -> None:  # when they are loaded, on copies of their own
            model, loss = copies()
            _check(model, own, f"{where}[{j}]", loss)

        data.check = check
        data.client(someone(data))
        return
    model, loss = copies()
    if isinstance(data, ClientData):
        first = someone(data)
        classes = check_fit(model, data.client(first), f"{where}[{first}]", loss)
        for people, rows in _blocks(data):
            try:  # many at once, and each alone only where something is wrong
                check_values(model, data.take(rows), where, loss, classes)
            except InputError:
                for j in people:
                    check_values(model, data.client(j), f"{where}[{j}]", loss, classes)
    else:
        _check(model, as_samples(data, where), where, loss)


def _copies(model: nn.Module, loss: Loss) -> tuple[nn.Module, Loss]:
    """Since trying them may change them; on the CPU, since a GPU dies of a bad token."""
    try:
        model, loss = copy.deepcopy((model, loss))
    except (RuntimeError, TypeError) as error:  # the model can be copied: see check_model
        raise InputError(
            f"the loss cannot be copied ({str(error).splitlines()[0][:200]}), and every client "
            "trains with a copy: take out what is no tensor or plain value"
        ) from error
    return model.cpu(), loss


def _check(model: nn.Module, samples: Samples, where: str, loss: Loss) -> None:
    if len(samples[1]) == 0:
        raise InputError(f"{where} holds no samples; give at least one")
    check_values(model, samples, where, loss, check_fit(model, samples, where, loss))


def _blocks(data: ClientData) -> Iterator[tuple[list[int], Tensor]]:
    """People and their places, about ``_ROWS`` of them together."""
    owners = np.flatnonzero(data.sizes)
    cuts = np.flatnonzero(np.diff(np.cumsum(data.sizes[owners]) // _ROWS)) + 1
    for people in np.split(owners, cuts):
        sizes = data.sizes[people]
        before = np.repeat(data.starts[people] - (np.cumsum(sizes) - sizes), sizes)
        places = torch.from_numpy(before + np.arange(sizes.sum()))
        yield people.tolist(), places.to(data.device)
