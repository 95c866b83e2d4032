"""The compiled form of each known torch layer: rows of a program, or the reason there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from torch import nn

from dpfedls.engine.compiled import (
    NotCompiled,
    activations,
    dense,
    images,
    normalisation,
    patches,
    pooling,
    sequences,
)
from dpfedls.engine.compiled.images import LANES
from dpfedls.engine.compiled.program import Row
from dpfedls.engine.recurrence import LSTM, LastPosition


@dataclass(frozen=True)
class Before:
    """What stands before a layer, and where the layer stands itself."""

    name: str  # of the layer in the model
    shape: tuple[int, ...]  # of a sample
    order: Literal["samples", "positions", "tokens"]  # how a batch lies in memory
    places: Mapping[str, int]  # of every trained tensor in the flat vector
    batch: int

    def refuse(self, layer: nn.Module, why: str) -> NoReturn:
        """No compiled form, because of this layer."""
        where = f"layer {self.name!r}" if self.name else "the model itself"
        raise NotCompiled(f"{where} ({type(layer).__name__}) {why}")

    def weights(self, layer: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """Where the layer's weights start, and how many: its tensors lie one after the other.

        A person may have put tensors of other shapes in place, frozen some, or shared them.
        """
        found = {name: tuple(p.shape) for name, p in layer.named_parameters()}
        if list(found.items()) != list(shapes.items()):
            self.refuse(layer, f"has tensors {found}, where its options ask for {dict(shapes)}")
        names = [f"{self.name}.{name}" if self.name else name for name in found]
        if any(name not in self.places for name in names):
            self.refuse(layer, "is frozen, or shares its weights with another layer")
        count, first = sum(map(math.prod, shapes.values())), self.places[names[0]] if names else 0
        return first, count


def rows_of(layer: nn.Module, before: Before) -> tuple[list[Row], Before]:
    """The layer's rows, and what stands before the next layer."""
    form = _FORMS.get(type(layer))
    if form is None:
        before.refuse(layer, "has no compiled form")
    if before.order == "tokens" and form is not _embedding:
        before.refuse(layer, "is given whole numbers, which only an embedding reads")
    rows = form(layer, before)
    order = before.order
    if form in (_embedding, _lstm):
        order = "positions"
    elif form in (_last_position, _flatten):
        order = "samples"
    if form is _flatten:
        return rows, replace(before, shape=(math.prod(before.shape),), order=order)
    return rows, replace(before, shape=rows[-1].shape if rows else before.shape, order=order)


def _with_bias(layer: Any, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"weight": shape} if layer.bias is None else {"weight": shape, "bias": shape[:1]}


def _linear(layer: nn.Linear, before: Before) -> list[Row]:
    inputs, outputs, shape = layer.in_features, layer.out_features, before.shape
    if shape[-1:] != (inputs,):
        before.refuse(layer, f"takes {inputs} inputs, but is given {shape} per sample")
    place, count = before.weights(layer, _with_bias(layer, (outputs, inputs)))
    rows = before.batch * math.prod(shape[:-1])
    return [
        Row(
            dense.linear,
            dense.linear_backward,
            (*shape[:-1], outputs),
            place,
            count,
            (inputs, outputs),
            starts=max(outputs, rows),
        )
    ]


def _conv2d(layer: nn.Conv2d, before: Before) -> list[Row]:
    if len(before.shape) != 3 or before.shape[0] != layer.in_channels:
        before.refuse(
            layer, f"takes {layer.in_channels} channels, but is given {before.shape} per sample"
        )
    if layer.padding_mode != "zeros":
        before.refuse(layer, f"has padding_mode {layer.padding_mode!r}; only 'zeros' is compiled")
    (channels, height, width), outputs = before.shape, layer.out_channels
    (tall, wide), (apart_y, apart_x) = layer.kernel_size, layer.dilation
    (stride_y, stride_x), groups = layer.stride, layer.groups
    reach_y, reach_x = apart_y * (tall - 1), apart_x * (wide - 1)
    if layer.padding == "same":  # torch puts what is odd behind
        top, left, all_y, all_x = reach_y // 2, reach_x // 2, reach_y, reach_x
    else:
        top, left = (0, 0) if isinstance(layer.padding, str) else layer.padding
        all_y, all_x = 2 * top, 2 * left
    down = (height + all_y - reach_y - 1) // stride_y + 1
    across = (width + all_x - reach_x - 1) // stride_x + 1
    if min(height + all_y - reach_y, width + all_x - reach_x) < 1:
        before.refuse(layer, f"has kernels larger than its images of {height} × {width}")
    taps, shape = tall * wide, (outputs, down, across)
    kernels = (outputs, channels // groups, tall, wide)
    place = before.weights(layer, _with_bias(layer, kernels))
    usual = (stride_y, stride_x, apart_y, apart_x, groups) == (1, 1, 1, 1, 1)
    even = (all_y, all_x) == (2 * top, 2 * left)
    if usual and even and top < tall and left < wide:
        padded = (height + 2 * top) * (width + 2 * left)
        back = (height + tall - 1) * (width + wide - 1) + LANES
        return [
            Row(
                images.convolution,
                images.convolution_backward,
                shape,
                *place,
                (channels, height, width, outputs, tall, wide, top, left),
                kept=channels * padded + LANES,
                scratch=max(
                    outputs * (padded + LANES),
                    channels * outputs * taps + (outputs + channels) * back,
                ),
                starts=max(channels, outputs) * taps,
            )
        ]
    rows = channels // groups * taps
    return [
        Row(
            patches.patch_convolution,
            patches.patch_convolution_backward,
            shape,
            *place,
            (
                channels, height, width, outputs, groups, tall, wide, top, left, stride_y, stride_x,
                apart_y, apart_x, down, across,
            ),
            scratch=rows * down * across,
            starts=max(rows, outputs),
        )
    ]  # fmt: skip


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _pool(
    layer: nn.Module, before: Before, functions: tuple[Any, Any], window: tuple[Any, Any, Any]
) -> list[Row]:
    """Pooling by windows of a size, a stride and a padding."""
    if len(before.shape) != 3:
        before.refuse(layer, f"takes images, but is given {before.shape} per sample")
    channels, height, width = before.shape
    (tall, wide), (stride_y, stride_x), (pad_y, pad_x) = map(_pair, window)
    down, across = (
        (height + 2 * pad_y - tall) // stride_y + 1,
        (width + 2 * pad_x - wide) // stride_x + 1,
    )
    if min(down, across) < 1:
        before.refuse(layer, f"has windows larger than its images of {height} × {width}")
    shape = (channels, down, across)
    sizes = (height, width, tall, wide, stride_y, stride_x, pad_y, pad_x, down, across)
    kept = math.prod(shape) if functions[0] is pooling.max_pool else 0
    return [Row(*functions, shape, sizes=sizes, kept=kept)]


def _max_pool2d(layer: nn.MaxPool2d, before: Before) -> list[Row]:
    if _pair(layer.dilation) != (1, 1) or layer.ceil_mode or layer.return_indices:
        before.refuse(layer, "has dilation, ceil_mode or return_indices, which are not compiled")
    window = (layer.kernel_size, layer.stride, layer.padding)
    return _pool(layer, before, (pooling.max_pool, pooling.max_pool_backward), window)


def _avg_pool2d(layer: nn.AvgPool2d, before: Before) -> list[Row]:
    margin = _pair(layer.padding) != (0, 0) and not layer.count_include_pad
    if layer.ceil_mode or layer.divisor_override or margin:
        before.refuse(
            layer, "has ceil_mode, divisor_override or count_include_pad=False, not compiled"
        )
    window = (layer.kernel_size, layer.stride, layer.padding)
    return _pool(layer, before, (pooling.mean_pool, pooling.mean_pool_backward), window)


def _adaptive_avg_pool2d(layer: nn.AdaptiveAvgPool2d, before: Before) -> list[Row]:
    wanted = layer.output_size
    down, across = (wanted, wanted) if not isinstance(wanted, tuple) else wanted
    height, width = before.shape[-2:] if len(before.shape) == 3 else (1, 1)
    down, across = down or height, across or width
    if height % down or width % across:
        before.refuse(layer, f"has windows of unlike sizes on images of {height} × {width}")
    window = (height // down, width // across)
    functions = (pooling.mean_pool, pooling.mean_pool_backward)
    return _pool(layer, before, functions, (window, window, 0))


def _normalise(
    layer: nn.LayerNorm | nn.GroupNorm, before: Before, size: int, parts: int, area: int,
    shape: tuple[int, ...],
) -> list[Row]:  # fmt: skip
    has = {"weight": layer.weight, "bias": layer.bias}
    shapes = {name: shape for name, tensor in has.items() if tensor is not None}
    numbers = math.prod(before.shape)
    return [
        Row(
            normalisation.normalise,
            normalisation.normalise_backward,
            before.shape,
            *before.weights(layer, shapes),
            (size, parts, area),
            (layer.eps,),
            kept=numbers + numbers // size,
            scratch=before.batch * numbers,
        )
    ]


def _layer_norm(layer: nn.LayerNorm, before: Before) -> list[Row]:
    shape = tuple(layer.normalized_shape)
    if before.shape[-len(shape) :] != shape or (before.order == "positions" and len(shape) != 1):
        before.refuse(layer, f"normalises {shape}, but is given {before.shape} per sample")
    size = math.prod(shape)
    return _normalise(layer, before, size, size, 1, shape)


def _group_norm(layer: nn.GroupNorm, before: Before) -> list[Row]:
    channels, shape = layer.num_channels, before.shape
    if shape[0] != channels or before.order != "samples":
        before.refuse(layer, f"normalises {channels} channels, but is given {shape} per sample")
    area = math.prod(shape[1:])
    size = channels // layer.num_groups * area
    return _normalise(layer, before, size, channels, area, (channels,))


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


def _flatten(layer: nn.Flatten, before: Before) -> list[Row]:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        before.refuse(layer, "flattens other dimensions than all of a sample")
    return [] if before.order == "samples" else [_swapped(before, by_position=False)]


def _swapped(before: Before, by_position: bool) -> Row:
    positions, wide = before.shape[0], math.prod(before.shape[1:])
    sizes = (wide, positions, int(by_position))
    return Row(sequences.swap, sequences.swap_backward, before.shape, sizes=sizes)


def _embedding(layer: nn.Embedding, before: Before) -> list[Row]:
    if before.order != "tokens" or len(before.shape) != 1:
        before.refuse(layer, f"reads one row of tokens, but is given {before.shape} per sample")
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
        before.refuse(layer, "has padding_idx, max_norm or scale_grad_by_freq, not compiled")
    wide, positions = layer.embedding_dim, before.shape[0]
    place = before.weights(layer, {"weight": (layer.num_embeddings, wide)})
    functions = sequences.embedding, sequences.embedding_backward
    return [Row(*functions, (positions, wide), *place, (wide, positions, layer.num_embeddings))]


def _lstm(layer: LSTM, before: Before) -> list[Row]:
    if len(before.shape) != 2 or before.shape[1] != layer.inputs:
        before.refuse(
            layer, f"takes {layer.inputs} numbers per position, but is given {before.shape}"
        )
    hidden, (positions, wide) = layer.hidden, before.shape
    shapes: dict[str, tuple[int, ...]] = {}
    for number in range(layer.layers):
        shapes |= {
            f"weight_ih_l{number}": (4 * hidden, hidden if number else wide),
            f"weight_hh_l{number}": (4 * hidden, hidden),
            f"bias_ih_l{number}": (4 * hidden,),
            f"bias_hh_l{number}": (4 * hidden,),
        }
    place, _ = before.weights(layer, shapes)
    rows = [] if before.order == "positions" else [_swapped(before, by_position=True)]
    for _ in range(layer.layers):
        count = 4 * hidden * (wide + hidden + 2)
        rows.append(
            Row(
                sequences.lstm,
                sequences.lstm_backward,
                (positions, hidden),
                place,
                count,
                (wide, hidden, positions),
                kept=6 * hidden * positions,
                scratch=4 * hidden * (wide + hidden + max(wide, hidden))
                + 2 * before.batch * hidden,
                starts=max(wide, hidden, positions * before.batch),
            )
        )
        place, wide = place + count, hidden
    return rows


def _last_position(layer: LastPosition, before: Before) -> list[Row]:
    if len(before.shape) < 2:
        before.refuse(layer, f"takes positions, but is given {before.shape} per sample")
    if before.order == "samples":
        swapped = _swapped(before, by_position=True)
        rows = [swapped]
    else:
        rows = []
    last = sequences.last_position, sequences.last_position_backward
    return [*rows, Row(*last, before.shape[1:])]


_FORMS: dict[type[nn.Module], Callable[..., list[Row]]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.MaxPool2d: _max_pool2d,
    nn.AvgPool2d: _avg_pool2d,
    nn.AdaptiveAvgPool2d: _adaptive_avg_pool2d,
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
    nn.Flatten: _flatten,
    nn.Identity: _identity,
    nn.Dropout: _dropout,
    nn.Embedding: _embedding,
    LSTM: _lstm,
    LastPosition: _last_position,
}
