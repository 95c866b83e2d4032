"""The compiled forms of layers on sequences, and of those that end one."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from dpfedls.engine.compiled import attention, sequences
from dpfedls.engine.compiled import gru as gru_code
from dpfedls.engine.compiled import lstm as lstm_code
from dpfedls.engine.compiled.before import Before
from dpfedls.engine.compiled.program import Row
from dpfedls.engine.positions import LastPosition, PositionEmbedding
from dpfedls.engine.recurrence import GRU, LSTM


def embedding(layer: nn.Embedding, before: Before) -> list[Row]:
    """From tokens to positions."""
    if before.order != "tokens" or len(before.shape) != 1:
        before.refuse(layer, f"reads one row of tokens, but is given {before.shape} per sample")
    if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
        before.refuse(layer, "has padding_idx, max_norm or scale_grad_by_freq, not compiled")
    wide, positions = layer.embedding_dim, before.shape[0]
    place = before.weights(layer, {"weight": (layer.num_embeddings, wide)})
    functions = sequences.embedding, sequences.embedding_backward
    return [Row(*functions, (positions, wide), *place, (wide, positions, layer.num_embeddings))]


def lstm(layer: LSTM, before: Before) -> list[Row]:
    """One row per layer of it."""
    return _recurrent(layer, before, (lstm_code.lstm, lstm_code.lstm_backward), gates=4)


def gru(layer: GRU, before: Before) -> list[Row]:
    """One row per layer of it."""
    return _recurrent(layer, before, (gru_code.gru, gru_code.gru_backward), gates=3)


def _recurrent(
    layer: LSTM | GRU, before: Before, functions: tuple[Any, Any], gates: int
) -> list[Row]:
    if len(before.shape) != 2 or before.shape[1] != layer.inputs:
        before.refuse(
            layer, f"takes {layer.inputs} numbers per position, but is given {before.shape}"
        )
    hidden, (positions, wide) = layer.hidden, before.shape
    all_gates = gates * hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for number in range(layer.layers):
        shapes |= {
            f"weight_ih_l{number}": (all_gates, hidden if number else wide),
            f"weight_hh_l{number}": (all_gates, hidden),
            f"bias_ih_l{number}": (all_gates,),
            f"bias_hh_l{number}": (all_gates,),
        }
    place, _ = before.weights(layer, shapes)
    rows = [] if before.order == "positions" else [_swapped(before, by_position=True)]
    for _ in range(layer.layers):
        count = all_gates * (wide + hidden + 2)
        rows.append(
            Row(
                *functions,
                (positions, hidden),
                place,
                count,
                (wide, hidden, positions),
                kept=6 * hidden * positions,
                # Weights as columns, rounded up to whole blocks, or as their gradient; a batch.
                scratch=(all_gates + lstm_code.PANEL) * (wide + hidden + max(wide, hidden) + 1)
                + before.batch * (wide + 3 * hidden + 1),
                starts=max(all_gates, wide + hidden + 1, positions * before.batch),
            )
        )
        place, wide = place + count, hidden
    return rows


def position_embedding(layer: PositionEmbedding, before: Before) -> list[Row]:
    """Any order of positions."""
    place = before.weights(layer, {"weight": before.shape})
    sizes = (*before.shape, int(before.order == "positions"))
    functions = attention.position_embedding, attention.position_embedding_backward
    return [Row(*functions, before.shape, *place, sizes)]


def last_position(layer: LastPosition, before: Before) -> list[Row]:
    """From positions to samples."""
    if len(before.shape) < 2:
        before.refuse(layer, f"takes positions, but is given {before.shape} per sample")
    rows = [] if before.order == "positions" else [_swapped(before, by_position=True)]
    last = sequences.last_position, sequences.last_position_backward
    return [*rows, Row(*last, before.shape[1:])]


def flatten(layer: nn.Flatten, before: Before) -> list[Row]:
    """Nothing to do, unless values lie position after position."""
    if (layer.start_dim, layer.end_dim) != (1, -1):
        before.refuse(layer, "flattens other dimensions than all of a sample")
    return [_swapped(before, by_position=False)] if before.order == "positions" else []


def _swapped(before: Before, by_position: bool) -> Row:
    """From sample after sample to position after position, or back."""
    positions, wide = before.shape[0], math.prod(before.shape[1:])
    sizes = (wide, positions, int(by_position))
    return Row(sequences.swap, sequences.swap_backward, before.shape, sizes=sizes)
