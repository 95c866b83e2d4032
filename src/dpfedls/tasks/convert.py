"""One call that makes a model trainable with user-level privacy, many clients at once."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfedls.engine.recurrence import recurrence
from dpfedls.errors import InputError
from dpfedls.people.checks import dropout_of, keeps_statistics

log = logging.getLogger("dpfedls")


def prepare(model: nn.Module) -> nn.Module:
    """A copy with GroupNorm for BatchNorm, no dropout, and LSTM and GRU layers written out.

    Weights stay under their names. A BatchNorm in eval mode is a constant and stays; so does a
    recurrent layer of two directions or with a projection, which trains one client at a time.
    """
    changed: list[str] = []

    def prepared(name: str, module: nn.Module) -> nn.Module:
        new = module
        if keeps_statistics(module):
            new = _group_norm(module, 32)
        elif dropout_of(module) > 0:
            setattr(module, "p" if hasattr(module, "p") else "dropout", 0.0)
            changed.append(f"{name or 'the model'}: dropout 0")
        if type(module) in _CELLS and not module.bidirectional and not module.proj_size:
            new = Recurrent(module)  # pyright: ignore[reportArgumentType]
        if new is not module:
            changed.append(f"{name or 'the model'}: {type(module).__name__} → {_name(new)}")
        return new

    model = _replaced(copy.deepcopy(model), prepared)
    log.info("prepare changed %s", "; ".join(changed) or "nothing")
    return model


def replace_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy with GroupNorm, at most ``groups`` groups, for each BatchNorm in training mode."""
    return _replaced(
        copy.deepcopy(model),
        lambda name, module: _group_norm(module, groups) if keeps_statistics(module) else module,
    )


class Recurrent(nn.Module):
    """nn.LSTM or nn.GRU with its cell written out: the same parameters, arguments and results."""

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.input_size, self.hidden_size = layer.input_size, layer.hidden_size
        self.num_layers, self.batch_first, self.bias = (
            layer.num_layers,
            layer.batch_first,
            layer.bias,
        )
        self.bidirectional, self.dropout, self.proj_size = False, 0.0, 0
        self.mode = layer.mode
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.train(layer.training)

    def flatten_parameters(self) -> None:
        """Nothing to do: there is no fused kernel to please."""

    def extra_repr(self) -> str:
        """As the layer it stands for."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, {self.mode}"

    def forward(self, sequence: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Every position's state of the last layer, and every layer's last state (and cell)."""
        if not isinstance(sequence, Tensor):
            raise InputError(
                f"a written-out {self.mode} was given a {type(sequence).__name__}; it reads "
                "tensors: pad the sequences, or leave the layer as torch made it"
            )
        alone = sequence.dim() == 2  # one sequence without a dimension of samples
        states = sequence.unsqueeze(1) if alone else sequence
        states = states.transpose(0, 1) if self.batch_first and not alone else states
        # Of an LSTM a pair: state and cell of each layer.
        given = hx if self.mode == "LSTM" or hx is None else (hx,)
        given = [part.unsqueeze(1) for part in given] if given is not None and alone else given
        last = []
        for layer in range(self.num_layers):
            start = None if given is None else [part[layer] for part in given]
            states, ends = _CELLS_BY_MODE[self.mode](states, *self._weights(layer), start)
            last.append(ends)
        ends = [torch.stack(parts) for parts in zip(*last, strict=True)]
        if alone:
            states, ends = states.squeeze(1), [end.squeeze(1) for end in ends]
        elif self.batch_first:
            states = states.transpose(0, 1)
        return states, tuple(ends) if self.mode == "LSTM" else ends[0]

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of inputs and states, then the two biases."""
        weights = [getattr(self, f"weight_{kind}_l{layer}") for kind in ("ih", "hh")]
        if not self.bias:
            nothing = weights[0].new_zeros(weights[0].shape[0])
            return weights[0], weights[1], nothing, nothing
        biases = [getattr(self, f"bias_{kind}_l{layer}") for kind in ("ih", "hh")]
        return weights[0], weights[1], biases[0], biases[1]


Cell: TypeAlias = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""``cell(inputs, weight_ih, weight_hh, bias_ih, bias_hh, start)``: all states, and the ends."""


def _lstm(
    inputs: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    start: Any,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    driven, bias = functional.linear(inputs, weight_ih), bias_ih + bias_hh
    if start is None:
        states = recurrence(driven, weight_hh, bias)
        # Known states give all gates in one product; cells then need no product at all.
        shifted = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
        gates = driven + functional.linear(shifted, weight_hh, bias)
        return states, (states[-1], _last_cell(gates))
    state, cell = start
    states = []
    for drive in driven.unbind():
        i, f, g, o = (drive + functional.linear(state, weight_hh, bias)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        states.append(state)
    return torch.stack(states), (state, cell)


def _last_cell(gates: Tensor) -> Tensor:
    i, f, g, _ = gates.chunk(4, dim=-1)
    new, kept = (i.sigmoid() * g.tanh()).unbind(), f.sigmoid().unbind()
    cell = new[0]
    for added, keep in zip(new[1:], kept[1:], strict=True):
        cell = keep * cell + added
    return cell


def _gru(
    inputs: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    start: Any,
) -> tuple[Tensor, tuple[Tensor]]:
    driven = functional.linear(inputs, weight_ih, bias_ih)
    wide = weight_hh.shape[1]
    state = driven.new_zeros(*driven.shape[1:-1], wide) if start is None else start[0]
    states = []
    for drive in driven.unbind():
        back = functional.linear(state, weight_hh, bias_hh)
        reset, update = (drive + back)[..., : 2 * wide].sigmoid().chunk(2, dim=-1)
        new = torch.tanh(drive[..., 2 * wide :] + reset * back[..., 2 * wide :])
        state = new + update * (state - new)
        states.append(state)
    return torch.stack(states), (state,)


_CELLS_BY_MODE: dict[str, Cell] = {"LSTM": _lstm, "GRU": _gru}
_CELLS = (nn.LSTM, nn.GRU)  # by exact type: what a subclass does is its own


def _replaced(model: nn.Module, new: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """The model with every module exchanged in place; one used twice stays one."""
    made = {id(module): new(name, module) for name, module in model.named_modules()}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None:
                parent._modules[name] = made[id(child)]
    return made[id(model)]


def _name(module: nn.Module) -> str:
    return "written out" if isinstance(module, Recurrent) else type(module).__name__


def _group_norm(norm: nn.Module, groups: int) -> nn.GroupNorm:
    channels = int(norm.num_features)  # pyright: ignore[reportArgumentType]
    # A flat sample has one number a channel, and of a group of one nothing would be left but zero.
    groups = 1 if isinstance(norm, nn.BatchNorm1d) else math.gcd(groups, channels)
    new = nn.GroupNorm(groups, channels, eps=float(norm.eps))  # pyright: ignore[reportArgumentType]
    if norm.affine:
        for name in ("weight", "bias"):
            setattr(new, name, getattr(norm, name))  # itself, frozen where it was
    return new.train(norm.training)
