"""From a model to its program: walk through its modules, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from dpfedls.engine.chains import serves_many
from dpfedls.engine.compiled import NotCompiled, branches
from dpfedls.engine.compiled.before import Before
from dpfedls.engine.compiled.forms import rows_of
from dpfedls.engine.compiled.program import Program, Row, assembled
from dpfedls.engine.residual import Residual
from dpfedls.parameters import Layout


def program_of(model: nn.Module, layout: Layout, sample: Tensor, batch: int) -> Program:
    """The model's program for inputs like ``sample``, a batch of one with any values.

    Raises NotCompiled, with the reason, where the model has a layer that is not known.
    """
    for name, module in model.named_modules():
        _require_untouched(name, module)
    leading = []
    for layer in _leaves(model):
        if not serves_many(layer):
            break
        leading.append(layer)
        sample = layer(sample)
    shape, floating = tuple(sample.shape[1:]), sample.is_floating_point()
    places = dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
    before = Before("", shape, "samples" if floating else "tokens", places, batch)
    rows, after = _rows(model, before, len(leading), 0)
    used = sum(row.weights for row in rows)
    if len(after.shape) != 1:
        raise NotCompiled(f"the model gives {after.shape} per sample, not one row of scores")
    if used != layout.dim:
        raise NotCompiled(f"the model has {layout.dim} weights, its known layers {used}")
    if not used or 0 in (math.prod(shape), *(math.prod(row.shape) for row in rows)):
        raise NotCompiled("the model has a layer of no width, or nothing to train")
    vocabulary = 0 if floating else rows[0].sizes[2]
    return assembled(rows, tuple(leading), vocabulary, math.prod(shape), batch)


def _rows(module: nn.Module, before: Before, skip: int, done: int) -> tuple[list[Row], Before]:
    """All rows of a module; the first ``skip`` leaves prepare samples, ``done`` rows are there."""
    parts = _PARTS.get(type(module))
    if parts is None:
        return ([], before) if skip else rows_of(module, before)
    rows: list[Row] = []
    for part in parts(module, before):
        if isinstance(part, list):
            made, before = _residual(module, part, before, done + len(rows))
        else:
            leaves = len(list(_leaves(part[1])))
            made, before = _named(part, before, min(skip, leaves), done + len(rows))
            skip -= min(skip, leaves)
        rows += made
    return rows, before


def _named(part: Part, before: Before, skip: int, done: int) -> tuple[list[Row], Before]:
    """The rows of a part, which is called by its name inside."""
    name, module = part
    inner = replace(before, name=f"{before.name}.{name}" if before.name else name)
    rows, after = _rows(module, inner, skip, done)
    return rows, replace(after, name=before.name)


def _residual(
    module: nn.Module, body: list[Part], before: Before, done: int
) -> tuple[list[Row], Before]:
    """``x`` plus what a body makes of it."""
    if before.order == "tokens":
        before.refuse(module, "is given whole numbers, which only an embedding reads")
    numbers, after = math.prod(before.shape), before
    rows = [Row(branches.fork, branches.fork_backward, before.shape, kept=numbers)]
    for part in body:
        made, after = _named(part, after, 0, done + len(rows))
        rows += made
    if (after.shape, after.order) != (before.shape, before.order):
        before.refuse(module, f"adds {after.shape} to {before.shape}, which are not alike")
    join = Row(branches.join, branches.join_backward, before.shape, keeps_with=done)
    return [*rows, join], before


def _encoder_layer(layer: nn.TransformerEncoderLayer, before: Before) -> list[Part | list[Part]]:
    """Attention and two linear layers, each added to its inputs, with norms before or behind."""
    if any(dropout.p for dropout in (layer.dropout, layer.dropout1, layer.dropout2)):
        before.refuse(layer, "has dropout; only dropout=0 is compiled")
    activation = _ACTIVATIONS.get(layer.activation, layer.activation)
    if not isinstance(activation, nn.Module):
        before.refuse(layer, "has an activation that is neither a module nor relu or gelu")
    attention: list[Part] = [("self_attn", layer.self_attn)]
    dense: list[Part] = [("linear1", layer.linear1), ("activation", activation)]
    dense.append(("linear2", layer.linear2))
    norms: list[Part] = [("norm1", layer.norm1), ("norm2", layer.norm2)]
    if layer.norm_first:
        return [[norms[0], *attention], [norms[1], *dense]]
    return [attention, norms[0], dense, norms[1]]


def _encoder(encoder: nn.TransformerEncoder, _: Before) -> list[Part | list[Part]]:
    layers: list[Part] = [(f"layers.{k}", layer) for k, layer in enumerate(encoder.layers)]
    return [*layers, *([("norm", encoder.norm)] if encoder.norm is not None else [])]


Part: TypeAlias = tuple[str, nn.Module]
# What a module runs one after the other; a list is a body that is added to its own inputs.
_PARTS: dict[type[nn.Module], Callable[..., Iterable[Part | list[Part]]]] = {
    nn.Sequential: lambda module, _: _children(module),
    Residual: lambda module, _: [[("body", module.body)]],
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
}
_ACTIVATIONS = {functional.relu: nn.ReLU(), functional.gelu: nn.GELU()}


def _children(module: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """All children; ``named_children`` leaves out one that is used twice."""
    return ((name, child) for name, child in module._modules.items() if child is not None)


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for _, child in _children(module):
            yield from _leaves(child)
    else:
        yield module


def _require_untouched(name: str, module: nn.Module) -> None:
    """Refuse a module that calls somebody's hook, or that was given a forward of its own."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    if any(hooks) or "forward" in vars(module):
        where = f"layer {name!r}" if name else "the model itself"
        what = "a hook" if any(hooks) else "a forward of its own"
        raise NotCompiled(f"{where} ({type(module).__name__}) has {what}")
