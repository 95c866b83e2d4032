"""From a model to the table that ``training`` runs, where all its layers are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.engine.chains import layers_of, serves_many
from dpfedls.engine.compiled import training
from dpfedls.engine.compiled.images import LANES
from dpfedls.engine.recurrence import LSTM, LastPosition
from dpfedls.parameters import Layout
from dpfedls.people.samples import as_input


@dataclass(frozen=True)
class Program:
    """A chain of layers as numbers, and the room it needs for a batch."""

    table: np.ndarray  # one row a layer; columns are named in ``training``
    first: tuple[nn.Module, ...]  # layers without weights that prepare all samples of a client
    symbols: bool  # whether a sample, once prepared, is symbols
    images: bool  # whether a layer is one of images
    alphabet: int  # how many symbols there are
    inputs: int  # numbers or symbols a sample
    classes: int
    batch: int
    values: int  # numbers a sample that layers make and keep
    places: int  # of largest values, a sample
    widest: int  # numbers a sample between two layers
    room: int
    starts: int
    powers: int  # gates of a batch at one position
    most: int  # weights of one layer


class _At(NamedTuple):
    """What stands before a layer."""

    prefix: str  # of its parameters' names
    shape: tuple[int, ...]  # of a sample
    places: Mapping[str, int]  # of every tensor in the flat vector
    batch: int

    def weights(self, layer: nn.Module) -> tuple[int, int]:
        """Where the layer's weights begin, its tensors one behind the other, and how many."""
        first = next(name for name, _ in layer.named_parameters())
        return self.places[self.prefix + first], sum(p.numel() for p in layer.parameters())


class _Row(NamedTuple):
    """A layer's row, the shape of a sample behind it, and the room it needs."""

    kind: int
    shape: tuple[int, ...]
    weight: int = 0  # where its first one stands
    weights: int = 0  # how many they are, all of its tensors together
    details: tuple[int, ...] = ()
    kept: int = 0  # numbers a sample
    places: int = 0
    room: int = 0
    starts: int = 0
    powers: int = 0


def program_of(model: nn.Module, layout: Layout, features: Tensor, batch: int) -> Program | None:
    """The model's program for such features; None where it is no chain of layers known here."""
    layers = layers_of(model, layout)
    if layers is None:
        return None
    sample, first = as_input(torch.zeros_like(features[:1])), []  # its shape and dtype count
    while layers and serves_many(layers[0][0]):
        first.append(layers.pop(0)[0])
        sample = first[-1](sample)
    symbols = not sample.is_floating_point()
    if sample.dtype not in (torch.float32, torch.int64):
        return None
    shape = tuple(sample.shape[1:])
    places = dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
    rows: list[_Row] = []
    for layer, prefix in layers:
        # Sequences lie position by position, which only layers of sequences expect.
        behind = "sequence" if rows and rows[-1].kind in _SEQUENCES else "sample"
        behind = "symbols" if symbols and not rows else behind
        make = _MAKERS[behind].get(type(layer))
        made = make and _as_made(layer) and make(layer, _At(prefix, shape, places, batch))
        if not made:
            return None
        rows += made
        shape = rows[-1].shape
    rows, numbers = [row for row in rows if row.kind != _NOTHING], math.prod(sample.shape[1:])
    if len(shape) != 1 or not rows or 0 in (numbers, *(math.prod(row.shape) for row in rows)):
        return None
    return _assembled(rows, tuple(first), symbols, numbers, batch)


def _as_made(layer: Any) -> bool:
    """Whether its tensors are those that its options speak of: somebody may have put in others."""
    expected: dict[str, tuple[int, ...]] = {}
    if isinstance(layer, nn.Linear):
        expected["weight"] = (layer.out_features, layer.in_features)
    elif isinstance(layer, nn.Conv2d):
        expected["weight"] = (layer.out_channels, layer.in_channels, *layer.kernel_size)
    elif isinstance(layer, nn.Embedding):
        expected["weight"] = (layer.num_embeddings, layer.embedding_dim)
    elif isinstance(layer, LSTM):
        gates, wide = 4 * layer.hidden, layer.inputs
        for number in range(layer.layers):
            expected |= {
                f"weight_ih_l{number}": (gates, wide),
                f"weight_hh_l{number}": (gates, layer.hidden),
                f"bias_ih_l{number}": (gates,),
                f"bias_hh_l{number}": (gates,),
            }
            wide = layer.hidden
    if getattr(layer, "bias", None) is not None:
        expected["bias"] = expected["weight"][:1]
    return [(n, tuple(p.shape)) for n, p in layer.named_parameters()] == list(expected.items())


def _assembled(
    rows: list[_Row], first: tuple[nn.Module, ...], symbols: bool, inputs: int, batch: int
) -> Program:
    """Inputs first, then for each layer what it makes and what it keeps."""
    sizes = [0 if symbols else inputs, *(math.prod(row.shape) for row in rows)]
    table, before, seen, places = [], 0, sizes[0], 0
    for row, taken, made in zip(rows, sizes[:-1], sizes[1:], strict=True):
        kept = places if row.places else seen + made
        line = [row.kind, taken, made, row.weight, row.weights, before, seen, kept, *row.details]
        table.append(line + [0] * (training.COLUMNS - len(line)))
        before, seen, places = seen, seen + made + row.kept, places + row.places
    return Program(
        table=np.array(table, dtype=np.int64),
        first=first,
        symbols=symbols,
        images=any(row.kind in (training.CONVOLUTION, training.MAX_POOL) for row in rows),
        alphabet=rows[0].details[2] if symbols else 0,
        inputs=inputs,
        classes=sizes[-1],
        batch=batch,
        values=seen,
        places=places,
        widest=max(sizes),
        room=max(row.room for row in rows),
        starts=max(row.starts for row in rows),
        powers=max(row.powers for row in rows),
        most=max(row.weights for row in rows),
    )


def _linear(layer: nn.Linear, at: _At) -> list[_Row]:
    if at.shape != (layer.in_features,):
        return []
    place, count = at.weights(layer)
    starts = max(layer.out_features, at.batch)
    return [_Row(training.LINEAR, (layer.out_features,), place, count, starts=starts)]


def _conv2d(layer: nn.Conv2d, at: _At) -> list[_Row]:
    plain = (*layer.stride, *layer.dilation) == (1, 1, 1, 1)
    if not plain or isinstance(layer.padding, str) or at.shape[:-2] != (layer.in_channels,):
        return []
    (tall, wide), (pad_y, pad_x) = layer.kernel_size, layer.padding
    channels, height, width = at.shape
    line, lines, outputs = width + 2 * pad_x, height + 2 * pad_y, layer.out_channels
    down, across = lines - tall + 1, line - wide + 1
    rest_y, rest_x = tall - 1 - pad_y, wide - 1 - pad_x  # the margin of the way back
    if min(down, across) < 1 or min(rest_y, rest_x) < 0:
        return []
    there = lines * line + LANES
    back = (across + 2 * rest_x) * (down + 2 * rest_y) + LANES
    turned = channels * outputs * tall * wide
    return [
        _Row(
            training.CONVOLUTION,
            (outputs, down, across),
            *at.weights(layer),
            (channels, height, width, outputs, tall, wide, pad_y, pad_x),
            kept=channels * lines * line + LANES,
            room=max(outputs * there, turned + (outputs + channels) * back),
            starts=max(channels, outputs) * tall * wide,
        )
    ]


def _max_pool2d(layer: nn.MaxPool2d, at: _At) -> list[_Row]:
    size = layer.kernel_size
    usual = (layer.padding, layer.dilation, layer.ceil_mode) == (0, 1, False)
    if not usual or not isinstance(size, int) or layer.stride != size or len(at.shape) != 3:
        return []
    channels, height, width = at.shape
    if height % size or width % size:
        return []
    shape = (channels, height // size, width // size)
    return [_Row(training.MAX_POOL, shape, details=(width, size), places=math.prod(shape))]


def _relu(layer: nn.ReLU, at: _At) -> list[_Row]:
    return [_Row(training.RELU, at.shape)]


def _tanh(layer: nn.Tanh, at: _At) -> list[_Row]:
    return [_Row(training.TANH, at.shape)]


def _flatten(layer: nn.Flatten, at: _At) -> list[_Row]:
    return [_Row(_NOTHING, (math.prod(at.shape),))]


def _identity(layer: nn.Identity, at: _At) -> list[_Row]:
    return [_Row(_NOTHING, at.shape)]


def _embedding(layer: nn.Embedding, at: _At) -> list[_Row]:
    plain = layer.padding_idx is None and layer.max_norm is None and not layer.scale_grad_by_freq
    if not plain or len(at.shape) != 1:
        return []
    wide, positions = layer.embedding_dim, at.shape[0]
    details = (wide, positions, layer.num_embeddings)
    return [_Row(training.EMBEDDING, (positions, wide), *at.weights(layer), details)]


def _lstm(layer: LSTM, at: _At) -> list[_Row]:
    (positions, inputs), hidden = at.shape, layer.hidden
    if inputs != layer.inputs:
        return []
    rows = []
    for number in range(layer.layers):
        wide = inputs if number == 0 else hidden
        rows.append(
            _Row(
                training.LSTM,
                (positions, hidden),
                at.places[f"{at.prefix}weight_ih_l{number}"],  # its other tensors stand behind
                4 * hidden * (wide + hidden + 2),
                (wide, hidden, positions),
                kept=6 * hidden * positions,
                room=4 * hidden * (wide + hidden + max(wide, hidden)) + 2 * at.batch * hidden,
                starts=max(wide, hidden, positions * at.batch),
                powers=4 * hidden * at.batch,
            )
        )
    return rows


def _last(layer: LastPosition, at: _At) -> list[_Row]:
    return [_Row(training.LAST, at.shape[1:])]


_NOTHING = -1
_SEQUENCES = (training.EMBEDDING, training.LSTM)
# By what stands before the layer.
_MAKERS: dict[str, dict[type[nn.Module], Callable[..., list[_Row]]]] = {
    "sample": {
        nn.Linear: _linear,
        nn.Conv2d: _conv2d,
        nn.MaxPool2d: _max_pool2d,
        nn.ReLU: _relu,
        nn.Tanh: _tanh,
        nn.Flatten: _flatten,
        nn.Identity: _identity,
    },
    "symbols": {nn.Embedding: _embedding},
    "sequence": {LSTM: _lstm, LastPosition: _last},
}
