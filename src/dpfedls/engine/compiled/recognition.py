"""From a model to its program: walk through its modules, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

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
    if batch * max(math.prod(row.shape) for row in rows) >= 2**31:
        raise NotCompiled("a batch has more numbers in one layer than 32 bits can count")
    vocabulary = 0 if floating else rows[0].sizes[2]
    return assembled(rows, tuple(leading), vocabulary, math.prod(shape), batch)


def _rows(module: nn.Module, before: Before, skip: int, done: int) -> tuple[list[Row], Before]:
    """All rows of a module; the first ``skip`` leaves prepare samples, ``done`` rows are there."""
    if type(module) is nn.Sequential:
        rows: list[Row] = []
        for name, child in _children(module):
            leaves = len(list(_leaves(child)))
            inner = replace(before, name=f"{before.name}.{name}" if before.name else name)
            made, before = _rows(child, inner, min(skip, leaves), done + len(rows))
            before = replace(before, name=inner.name.rpartition(".")[0])
            rows, skip = rows + made, skip - min(skip, leaves)
        return rows, before
    if type(module) is Residual:
        return _residual(module, before, done)
    return ([], before) if skip else rows_of(module, before)


def _residual(module: Residual, before: Before, done: int) -> tuple[list[Row], Before]:
    if before.order == "tokens":
        before.refuse(module, "is given whole numbers, which only an embedding reads")
    numbers = math.prod(before.shape)
    fork = Row(branches.fork, branches.fork_backward, before.shape, kept=numbers)
    inside = replace(before, name=f"{before.name}.body" if before.name else "body")
    body, after = _rows(module.body, inside, 0, done + 1)
    if (after.shape, after.order) != (before.shape, before.order):
        before.refuse(module, f"adds {after.shape} to {before.shape}, which are not alike")
    join = Row(branches.join, branches.join_backward, before.shape, keeps_with=done)
    return [fork, *body, join], before


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
