"""A model's layers as a table of numbers, with a place in memory for all they compute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from dpfedls.engine.compiled import training
from dpfedls.engine.compiled.activations import relu
from dpfedls.engine.compiled.calls import BACKWARD, FORWARD
from dpfedls.engine.compiled.pooling import max_pool
from dpfedls.engine.compiled.products import COMBINE, DOTS, combine, dots
from dpfedls.engine.jit import address_of


@dataclass(frozen=True)
class Row:
    """One layer: its functions (see ``calls``), its outputs per sample, the memory it needs."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    shape: tuple[int, ...]  # of a sample's outputs
    weight: int = 0  # place of its first weight in the flat vector
    weights: int = 0  # how many there are, all of its tensors together
    sizes: tuple[int, ...] = ()
    options: tuple[float, ...] = ()
    kept: int = 0  # numbers per sample
    keeps_with: int | None = None  # the row whose ``kept`` this one shares
    scratch: int = 0
    starts: int = 0


@dataclass(frozen=True)
class Program:
    """What ``training`` runs, and how much memory it takes."""

    rows: tuple[Row, ...]
    table: np.ndarray  # columns are named in ``training``
    options: np.ndarray
    first: tuple[nn.Module, ...]  # layers without weights that prepare all samples of a client
    vocabulary: int  # how many tokens there are; 0 where samples are numbers
    inputs: int  # numbers or tokens per sample
    classes: int
    batch: int
    values: int  # numbers per sample that layers compute and keep
    widest: int  # numbers per sample between two layers
    scratch: int
    starts: int
    weights: int  # of the layer that has most

    def layers(self) -> training.Layers:
        """The same with the addresses of machine code, compiled where it is not yet."""
        calls = [
            (address_of(row.forward, FORWARD), address_of(row.backward, BACKWARD))
            for row in self.rows
        ]
        products = [address_of(combine, COMBINE), address_of(dots, DOTS)]
        return training.Layers(
            np.array(calls, dtype=np.int64), self.table, self.options, np.array(products)
        )


def assembled(
    rows: list[Row], first: tuple[nn.Module, ...], vocabulary: int, inputs: int, batch: int
) -> Program:
    """The batch first, then for each layer what it computes and what it keeps."""
    rows = _pooled_first(rows)
    counts = [inputs, *(math.prod(row.shape) for row in rows)]
    table, places, before, end, wanted = [], [], 0, inputs, 0
    for row, taken, made in zip(rows, counts[:-1], counts[1:], strict=True):
        shared = row.keeps_with
        places.append(end + made if shared is None else places[shared])
        kept = row.kept if shared is None else rows[shared].kept
        line = [taken, made, row.weight, row.weights, before, end, places[-1], kept, wanted]
        table.append([*line, *row.sizes] + [0] * (training.COLUMNS - len(line) - len(row.sizes)))
        before, end = end, end + made + row.kept
        wanted = wanted or int(row.weights > 0)
    return Program(
        rows=tuple(rows),
        table=np.array(table, dtype=np.int64),
        options=np.array([(*row.options, 0.0, 0.0)[:2] for row in rows], dtype=np.float32),
        first=first,
        vocabulary=vocabulary,
        inputs=inputs,
        classes=counts[-1],
        batch=batch,
        values=end,
        widest=max(counts),
        scratch=max(row.scratch for row in rows),
        starts=max(row.starts for row in rows),
        weights=max(row.weights for row in rows),
    )


def _pooled_first(rows: list[Row]) -> list[Row]:
    """ReLU after max pooling: the same values and gradients from a fraction of the work."""
    order = list(rows)
    for k, (first, second) in enumerate(itertools.pairwise(rows)):
        if first.forward is relu and second.forward is max_pool:
            order[k], order[k + 1] = second, first
            order[k + 1] = _reshaped(first, second.shape)
    return order


def _reshaped(row: Row, shape: tuple[int, ...]) -> Row:
    return Row(row.forward, row.backward, shape)
