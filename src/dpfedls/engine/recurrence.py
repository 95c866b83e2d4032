"""An LSTM and a GRU that run for one client or, under vmap, for many at once.

Torch has no batching rule for its fused ones. This LSTM runs all clients position by position, with
one batched product and one pointwise step at each. Its backward pass is written out, so that the
gradients of the weights are one product over all positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function


def recurrence(driven: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Hidden states (t, b, h) of an LSTM; its inputs add ``driven`` (t, b, 4h) to its gates.

    Gates are in torch's order: input, forget, cell, output.
    """
    if has_torch_function((driven, weight, bias)):  # many clients: see ``batching``
        return handle_torch_function(recurrence, (driven, weight, bias), driven, weight, bias)
    alone = Recurrence.apply(driven[None], weight[None], bias[None])
    return alone[0]  # pyright: ignore[reportOptionalSubscript]


class LSTM(nn.Module):
    """nn.LSTM(batch_first=True) with its cell written out: same parameters, same outputs.

    Torch has no batching rule for the fused kernel, so it cannot train many clients at once.
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.inputs, self.hidden, self.layers = inputs, hidden, layers
        _register(self, gates=4)

    def forward(self, sequence: Tensor) -> Tensor:
        """Hidden states of the last layer, one for each position."""
        states = sequence.transpose(0, 1)
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = _weights(self, layer)
            # What the inputs add to the gates needs no recurrence: one product for all positions.
            driven = nn.functional.linear(states, weight_ih)
            states = recurrence(driven, weight_hh, bias_ih + bias_hh)
        return states.transpose(0, 1)


class GRU(nn.Module):
    """nn.GRU(batch_first=True) with its cell written out: same parameters, same outputs."""

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.inputs, self.hidden, self.layers = inputs, hidden, layers
        _register(self, gates=3)

    def forward(self, sequence: Tensor) -> Tensor:
        """Hidden states of the last layer, one for each position."""
        for layer in range(self.layers):
            weight_ih, weight_hh, bias_ih, bias_hh = _weights(self, layer)
            driven = nn.functional.linear(sequence, weight_ih, bias_ih)
            state, states = torch.zeros_like(driven[:, 0, : self.hidden]), []
            for here in driven.unbind(dim=1):
                carried = nn.functional.linear(state, weight_hh, bias_hh)
                (reset, update, new), (r, u, n) = here.chunk(3, -1), carried.chunk(3, -1)
                new = torch.tanh(new + torch.sigmoid(reset + r) * n)
                state = new + torch.sigmoid(update + u) * (state - new)
                states.append(state)
            sequence = torch.stack(states, dim=1)
        return sequence


def _register(module: LSTM | GRU, gates: int) -> None:
    """Parameters as torch names, orders and draws them."""
    bound, all_gates = 1 / math.sqrt(module.hidden), gates * module.hidden
    for layer in range(module.layers):
        width = module.hidden if layer else module.inputs
        shapes = ((all_gates, width), (all_gates, module.hidden), (all_gates,), (all_gates,))
        for kind, shape in zip(_KINDS, shapes, strict=True):
            parameter = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
            module.register_parameter(f"{kind}_l{layer}", parameter)


def _weights(module: LSTM | GRU, layer: int) -> tuple[Tensor, ...]:
    return tuple(getattr(module, f"{kind}_l{layer}") for kind in _KINDS)


_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Recurrence(torch.autograd.Function):
    """``recurrence`` with a first dimension of clients, and separate weights per client."""

    @staticmethod
    def forward(ctx: Any, driven: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        forward = _forward_on_gpu if driven.is_cuda else _forward
        states, gates, cells = forward(driven, weight, bias)
        ctx.save_for_backward(weight, states, gates, cells)
        return states

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, states, gates, cells = ctx.saved_tensors
        backward = _backward_on_gpu if states.is_cuda else _backward
        d_gates = backward(d_outputs[0], weight, gates, cells)
        d_weight = torch.bmm(d_gates[:, 1:].flatten(1, 2).mT, states[:, :-1].flatten(1, 2))
        return d_gates, d_weight, d_gates.sum(dim=(1, 2))


def _positions(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """(clients, positions, …) tensors position by position, as views."""
    return zip(*(tensor.unbind(dim=1) for tensor in tensors), strict=True)


def _forward(driven: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States, activated gates and cells of every position."""
    clients, length, batch, _ = driven.shape
    wide, transposed = weight.shape[2], weight.mT
    gates = driven + bias[:, None, None]
    states, cells = (driven.new_empty(clients, length, batch, wide) for _ in range(2))
    squashed = driven.new_empty(clients, batch, wide)
    before = state = None
    for gate, cell, new in _positions(gates, cells, states):
        if state is not None:
            gate.baddbmm_(state, transposed)
        gate[..., : 2 * wide].sigmoid_()
        gate[..., 2 * wide : 3 * wide].tanh_()
        gate[..., 3 * wide :].sigmoid_()
        i, f, g, o = gate.chunk(4, dim=-1)
        torch.mul(i, g, out=cell)
        if before is not None:
            cell.addcmul_(f, before)
        torch.mul(o, torch.tanh(cell, out=squashed), out=new)
        before, state = cell, new
    return states, gates, cells


def _backward(d_states: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    """The gradient of ``driven``.

    Everything that does not depend on later positions is computed for all positions at once; going
    backwards, each position then takes six operations.
    """
    clients, length, batch, wide = cells.shape
    i, f, g, o = gates.view(clients, length, batch, 4, wide).unbind(dim=3)
    squashed = cells.tanh()
    through = o * (1 - squashed * squashed)  # d state / d cell
    # First d cell / d gate for three gates and d state / d gate for the last, then d_gates.
    d_gates = torch.empty_like(gates).view(clients, length, batch, 4, wide)
    torch.mul(g, i - i * i, out=d_gates[..., 0, :])
    d_gates[:, 0, :, 1] = 0.0
    torch.mul(cells[:, :-1], (f - f * f)[:, 1:], out=d_gates[:, 1:, :, 1])
    torch.mul(i, 1 - g * g, out=d_gates[..., 2, :])
    torch.mul(squashed, o - o * o, out=d_gates[..., 3, :])
    d_cell, later = (cells.new_zeros(clients, batch, wide) for _ in range(2))
    for above, via, d_gate, forget in reversed(list(_positions(d_states, through, d_gates, f))):
        later += above
        d_cell.addcmul_(later, via)
        d_gate[..., 3, :] *= later
        d_gate[..., :3, :] *= d_cell.unsqueeze(-2)
        d_cell *= forget
        torch.bmm(d_gate.view(clients, batch, 4 * wide), weight, out=later)
    return d_gates.view_as(gates)


def _forward_on_gpu(driven: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``_forward`` with one kernel per position; cells are float32."""
    from dpfedls.engine.kernels.lstm_cell import lstm_cell

    clients, length, batch, _ = driven.shape
    driven, bias = driven.contiguous(), bias.contiguous()
    transposed, wide = weight.mT, weight.shape[2]
    gates = torch.empty_like(driven)
    states = driven.new_empty(clients, length, batch, wide)
    cells = driven.new_empty(clients, length, batch, wide, dtype=torch.float32)
    hidden = driven.new_zeros(clients, batch, 4 * wide)
    before, state = cells.new_zeros(clients, batch, wide), None
    for drive, gate, cell, new in _positions(driven, gates, cells, states):
        if state is not None:
            torch.bmm(state, transposed, out=hidden)
        lstm_cell(drive, hidden, bias, before, gate, cell, new)
        before, state = cell, new
    return states, gates, cells


def _backward_on_gpu(d_states: Tensor, weight: Tensor, gates: Tensor, cells: Tensor) -> Tensor:
    """``_backward`` with one kernel per position."""
    from dpfedls.engine.kernels.lstm_cell import lstm_cell_backward

    d_gates, d_states = torch.empty_like(gates), d_states.contiguous()
    d_cell, later = torch.zeros_like(cells[:, 0]), torch.zeros_like(d_states[:, 0])
    befores = (torch.zeros_like(d_cell), *cells.unbind(dim=1)[:-1])
    steps = zip(_positions(d_states, gates, cells, d_gates), befores, strict=True)
    for (above, gate, cell, d_gate), before in reversed(list(steps)):
        lstm_cell_backward(above, later, d_cell, gate, cell, before, d_gate)
        torch.bmm(d_gate, weight, out=later)
    return d_gates
