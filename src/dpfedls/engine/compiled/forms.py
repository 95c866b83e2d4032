"""The compiled form of each known torch layer: rows of a program, or the reason there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from dpfedls.engine.compiled import (
    activations,
    attention,
    dense,
    image_forms,
    normalisation,
    sequence_forms,
)
from dpfedls.engine.compiled.before import Before, with_bias
from dpfedls.engine.compiled.program import Row
from dpfedls.engine.compiled.registers import COLUMNS
from dpfedls.engine.positions import LastPosition, PositionEmbedding
from dpfedls.engine.recurrence import GRU, LSTM

_AT_ONCE = 2**12  # weights of a linear layer that are put together and used: 16 KiB stay cached


def rows_of(layer: nn.Module, before: Before) -> tuple[list[Row], Before]:
    """The layer's rows, and what stands before the next layer."""
    form = _FORMS.get(type(layer))
    if form is None:
        before.refuse(layer, "has no compiled form")
    if before.order == "tokens" and form is not sequence_forms.embedding:
        before.refuse(layer, "is given whole numbers, which only an embedding reads")
    rows = form(layer, before)
    shape = rows[-1].shape if rows else before.shape
    if form is sequence_forms.flatten:
        shape = (math.prod(shape),)
    return rows, replace(before, shape=shape, order=_ORDER_AFTER.get(form, before.order))


def _linear(layer: nn.Linear, before: Before) -> list[Row]:
    inputs, outputs, shape = layer.in_features, layer.out_features, before.shape
    if shape[-1:] != (inputs,):
        before.refuse(layer, f"takes {inputs} inputs, but is given {shape} per sample")
    place = before.weights(layer, with_bias(layer, (outputs, inputs)))
    return [_linear_row(inputs, outputs, before, *place)]


def _linear_row(inputs: int, outputs: int, before: Before, place: int, count: int) -> Row:
    rows = before.batch * math.prod(before.shape[:-1])
    together = max(1, _AT_ONCE // (COLUMNS * max(1, inputs))) * COLUMNS  # whole blocks of a product
    return Row(
        dense.linear,
        dense.linear_backward,
        (*before.shape[:-1], outputs),
        place,
        count,
        (inputs, outputs, together),
        scratch=outputs + inputs * together * dense.DEEPER,
        starts=max(together * dense.DEEPER, inputs, rows),
    )


def _self_attention(layer: nn.MultiheadAttention, before: Before) -> list[Row]:
    """One product to queries, keys and values, attention, one product behind it."""
    wide, heads, deep = layer.embed_dim, layer.num_heads, layer.head_dim
    if len(before.shape) != 2 or before.shape[1] != wide:
        before.refuse(layer, f"takes positions of {wide} numbers, but is given {before.shape}")
    if not layer.batch_first or layer.dropout or layer.add_zero_attn:
        before.refuse(layer, "has batch_first=False, dropout or add_zero_attn, not compiled")
    shapes: dict[str, tuple[int, ...]] = {"in_proj_weight": (3 * wide, wide)}
    shapes |= {"in_proj_bias": (3 * wide,)} if layer.in_proj_bias is not None else {}
    first = sum(map(math.prod, shapes.values()))
    behind = with_bias(layer.out_proj, (wide, wide))
    shapes |= {f"out_proj.{name}": shape for name, shape in behind.items()}
    place, count = before.weights(layer, shapes)
    positions = before.shape[0]
    middle = Row(
        attention.attention,
        attention.attention_backward,
        before.shape,
        sizes=(positions, wide, heads, int(before.order == "positions")),
        kept=heads * positions * positions,
        scratch=positions * (deep + positions),
        starts=2 * positions + deep,
    )
    return [
        _linear_row(wide, 3 * wide, before, place, first),
        middle,
        _linear_row(wide, wide, before, place + first, count - first),
    ]


def _normalise(
    layer: nn.LayerNorm | nn.GroupNorm, before: Before, functions: tuple[Any, Any],
    sizes: tuple[int, ...], shape: tuple[int, ...], kept: int,
) -> list[Row]:  # fmt: skip
    has = {"weight": layer.weight, "bias": layer.bias}
    shapes = {name: shape for name, tensor in has.items() if tensor is not None}
    place = before.weights(layer, shapes)
    return [Row(*functions, before.shape, *place, sizes, (layer.eps,), kept, scratch=sizes[0])]


def _layer_norm(layer: nn.LayerNorm, before: Before) -> list[Row]:
    shape = tuple(layer.normalized_shape)
    if before.shape[-len(shape) :] != shape or (before.order == "positions" and len(shape) != 1):
        before.refuse(layer, f"normalises {shape}, but is given {before.shape} per sample")
    functions = normalisation.layer_norm, normalisation.layer_norm_backward
    size, numbers = math.prod(shape), math.prod(before.shape)
    return _normalise(layer, before, functions, (size,), shape, numbers + numbers // size)


def _group_norm(layer: nn.GroupNorm, before: Before) -> list[Row]:
    channels, shape = layer.num_channels, before.shape
    if shape[0] != channels or before.order != "samples":
        before.refuse(layer, f"normalises {channels} channels, but is given {shape} per sample")
    area = math.prod(shape[1:])
    functions = normalisation.group_norm, normalisation.group_norm_backward
    sizes = (channels // layer.num_groups * area, channels, area)
    return _normalise(layer, before, functions, sizes, (channels,), 2 * layer.num_groups)


def _pointwise(
    forward: Callable[..., Any], backward: Callable[..., Any], *options: str
) -> Callable[..., list[Row]]:
    def form(layer: nn.Module, before: Before) -> list[Row]:
        values = tuple(float(getattr(layer, name)) for name in options)
        return [Row(forward, backward, before.shape, options=values)]

    return form


def _gelu(layer: nn.GELU, before: Before) -> list[Row]:
    if layer.approximate == "tanh":
        return [Row(activations.tanh_gelu, activations.tanh_gelu_backward, before.shape)]
    kept = math.prod(before.shape)
    return [Row(activations.gelu, activations.gelu_backward, before.shape, kept=kept)]


def _identity(layer: nn.Module, before: Before) -> list[Row]:
    return []


def _dropout(layer: nn.Dropout, before: Before) -> list[Row]:
    if layer.p != 0:
        before.refuse(layer, f"has p = {layer.p}; only p = 0 is compiled")
    return []


_FORMS: dict[type[nn.Module], Callable[..., list[Row]]] = {
    nn.Linear: _linear,
    nn.MultiheadAttention: _self_attention,  # of an encoder layer, see ``recognition``
    nn.Conv1d: image_forms.convolution,
    nn.Conv2d: image_forms.convolution,
    nn.MaxPool1d: image_forms.max_pool,
    nn.MaxPool2d: image_forms.max_pool,
    nn.AvgPool1d: image_forms.avg_pool,
    nn.AvgPool2d: image_forms.avg_pool,
    nn.AdaptiveAvgPool1d: image_forms.adaptive_avg_pool,
    nn.AdaptiveAvgPool2d: image_forms.adaptive_avg_pool,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.ReLU: _pointwise(activations.relu, activations.relu_backward),
    nn.LeakyReLU: _pointwise(
        activations.leaky_relu, activations.leaky_relu_backward, "negative_slope"
    ),
    nn.ELU: _pointwise(activations.elu, activations.elu_backward, "alpha"),
    nn.Tanh: _pointwise(activations.tanh, activations.tanh_backward),
    nn.Sigmoid: _pointwise(activations.sigmoid, activations.sigmoid_backward),
    nn.SiLU: _pointwise(activations.silu, activations.silu_backward),
    nn.Softplus: _pointwise(
        activations.softplus, activations.softplus_backward, "beta", "threshold"
    ),
    nn.GELU: _gelu,
    nn.Flatten: sequence_forms.flatten,
    nn.Identity: _identity,
    nn.Dropout: _dropout,
    nn.Embedding: sequence_forms.embedding,
    LSTM: sequence_forms.lstm,
    GRU: sequence_forms.gru,
    PositionEmbedding: sequence_forms.position_embedding,
    LastPosition: sequence_forms.last_position,
}

_ORDER_AFTER: dict[Callable[..., list[Row]], Literal["samples", "positions"]] = {
    sequence_forms.embedding: "positions",
    sequence_forms.lstm: "positions",
    sequence_forms.gru: "positions",
    sequence_forms.last_position: "samples",
    sequence_forms.flatten: "samples",
}
