"""Samples as tensors: from whatever arrays they lie in, and ready for a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure
from torch.utils.data import DataLoader, Dataset

from dpfedls.errors import InputError

Features: TypeAlias = Any
"""One tensor, or a dict or tuple of tensors, one row a sample each; the model gets it as it is."""
Samples: TypeAlias = tuple[Features, Tensor]

_PORTION, _LARGEST = 2000, 2**16


def as_samples(pair: Any, where: str) -> Samples:
    """Features and targets as tensors on the memory of the arrays, tensors or lists given."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(
            f"{where} is {_named(pair)}, not a pair of tensors or arrays; give (features, targets)"
            f"{_how(pair)}"
        )
    features = each(lambda values: _tensor(values, f"features of {where}"), pair[0])
    targets = _tensor(pair[1], f"targets of {where}")
    for rows in {len(leaf) for leaf in leaves(features)} - {len(targets)}:
        several = targets.dim() > 1 and targets.shape[1] == rows
        raise InputError(
            f"{where} has {rows} rows of features but {len(targets)} targets; give one target for "
            f"every row{_COLUMNS if several else ''}"
        )
    # True and False are the labels 1 and 0 (a loss on floats says targets.float()).
    return features, targets.view(torch.uint8) if targets.dtype == torch.bool else targets


def as_input(values: Tensor) -> Tensor:
    """What models want: float32; tokens and labels (stored small) as int64; masks as they are."""
    if values.is_floating_point():
        return values.float()
    return values if values.dtype == torch.bool else values.long()


def each(function: Callable[[Any], Any], tree: Any) -> Any:
    """The function of a tensor, or of each tensor in a dict or tuple."""
    if isinstance(tree, Tensor):  # the usual case, and worth its own way in every step
        return function(tree)
    return tree_map(function, tree, is_leaf=_is_leaf)


def leaves(tree: Any) -> list[Any]:
    """The tensors of a dict or tuple, or the one tensor."""
    return tree_leaves(tree, is_leaf=_is_leaf)


def joined(parts: list[Any]) -> Any:
    """Tensors one behind the other, in trees of one structure leaf by leaf."""
    return tree_map(lambda *own: torch.cat(own), parts[0], *parts[1:])


def portions(samples: Samples, device: torch.device) -> Iterator[Samples]:
    """All samples in order, where the model lies, as many at a time as memory bears.

    On a CPU a forward pass gains nothing from large batches. On a GPU a model of many small kernels
    (an LSTM) waits for their launches, so the first batch shows what a sample takes.
    """
    start, size, before, gpu = 0, _PORTION, 0, device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    while start < len(samples[1]):
        here = slice(start, start + size)
        yield each(lambda part, here=here: as_input(part[here].to(device)), samples)
        if gpu and start == 0:
            taken = torch.cuda.max_memory_allocated(device) - before
            size = portion(taken, torch.cuda.get_device_properties(device).total_memory)
        start = here.stop


def portion(taken: int, memory: int) -> int:
    """Samples at a time on a card of ``memory`` bytes, where ``_PORTION`` of them took ``taken``.

    A sixteenth of the card may be used: others may have the rest. What is free does not count, so
    that the same card evaluates in the same batches again.
    """
    doublings = (memory // (16 * max(1, taken))).bit_length() - 1
    return min(_LARGEST, _PORTION << max(0, doublings))


def kind(pair: Samples) -> Any:
    """What one model needs alike: which inputs, of which shapes, floats or whole numbers."""
    kinds = [(v.shape[1:], v.is_floating_point(), v.dtype == torch.bool) for v in leaves(pair)]
    return tree_structure(pair), kinds


def described(pair: Samples) -> str:
    """Dtypes and shapes in words."""
    features = ", ".join(f"{v.dtype} and shape {tuple(v.shape[1:])}" for v in leaves(pair[0]))
    targets = f"{pair[1].dtype} and shape {tuple(pair[1].shape[1:])}"
    return f"features of {features} a sample and targets of {targets}"


def select(values: Tensor, rows: Tensor) -> Tensor:
    """``values[rows]``, where rows lie; whole rows are copied at once, unlike by indexing."""
    plain = values.view(_SIGNED.get(values.dtype, values.dtype))
    chosen = plain.index_select(0, rows.reshape(-1).to(values.device)).view(values.dtype)
    return chosen.to(rows.device).view(*rows.shape, *values.shape[1:])


# Unsigned types that torch's index_select lacks, and those of the same bytes.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


_COLUMNS = ", several as columns of one array, which loss takes apart"


def _how(value: Any) -> str:
    """How what is no pair becomes one."""
    if isinstance(value, Dataset | DataLoader):
        return ": of a Dataset d (a loader's .dataset) next(iter(DataLoader(d, batch_size=len(d))))"
    if hasattr(value, "columns"):
        return ': of a frame (frame.drop(columns="y"), frame["y"]), or ClientData.from_frame'
    if isinstance(value, list | tuple) and value and all(isinstance(own, tuple) for own in value):
        return ": of samples x, y = zip(*samples), then (numpy.stack(x), numpy.array(y))"
    return ", features perhaps a dict or tuple of arrays"


def _named(value: Any) -> str:
    parts = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{parts}"


def _is_leaf(node: Any) -> bool:
    return not isinstance(node, dict | tuple)  # a list is data written out


def _tensor(values: Any, where: str) -> Tensor:
    """A tensor on the same memory, so that a mapped file stays mapped."""
    try:
        if isinstance(values, dict):
            raise TypeError(f"they are a dict: give them{_COLUMNS.removeprefix(', several')}")
        if not isinstance(values, Tensor):
            array = np.asarray(values)
            first = array.flat[0] if array.dtype.kind == "O" and array.size else None
            if array.dtype.kind in "SU" or isinstance(first, str):
                raise TypeError("they are text: number what it stands for, 0, 1, …")
            if first is not None:
                raise TypeError(f"they are objects of type {type(first).__name__}")
            if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
                array = array.astype(array.dtype.newbyteorder("="), order="C")
            with (
                warnings.catch_warnings()
            ):  # torch fears for memory that is read-only; we only read
                warnings.simplefilter("ignore", UserWarning)
                values = torch.from_numpy(array)
        if values.layout != torch.strided:
            raise TypeError("they are sparse: use .to_dense()")
        if values.is_complex():
            raise TypeError("they are complex: give real and imaginary parts as two columns")
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the {where} are no array of numbers ({str(error).splitlines()[0][:120]}); give a "
            "tensor or a NumPy array of floats or whole numbers, the same shape for every sample"
        ) from error
    if values.dim() == 0:
        raise InputError(f"the {where} are one number; give an array with one row a sample")
    return values.detach()
