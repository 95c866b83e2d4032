"""The recurrent part of an LSTM layer, for one client or, under vmap, for many at once.

Torch has no batching rule for its fused LSTM. This one runs all clients position by position: one
batched product and one pointwise step each, with the backward pass written out, so that the
gradients of the weights are one product over all positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function


def recurrence(driven: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Hidden states (t, b, h) of an LSTM whose gates are ``driven`` (t, b, 4h) by its inputs.

    Gates stand in torch's order: input, forget, cell, output.
    """
    if has_torch_function((driven, weight, bias)):  # many clients: see ``batching``
        return handle_torch_function(recurrence, (driven, weight, bias), driven, weight, bias)
    alone = Recurrence.apply(driven[None], weight[None], bias[None])
    return alone[0]  # pyright: ignore[reportOptionalSubscript]


class Recurrence(torch.autograd.Function):
    """The same with a first dimension of clients, each with weights of its own."""

    @staticmethod
    def forward(ctx: Any, driven: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        clients, positions, batch, _ = driven.shape
        wide, cell_step = weight.shape[2], _kernel("lstm_cell", driven) or _cell
        driven, bias, turned = driven.contiguous(), bias.contiguous(), weight.mT
        gates = torch.empty_like(driven)
        states = driven.new_empty(clients, positions, batch, wide)
        cells = driven.new_empty(clients, positions, batch, wide, dtype=torch.float32)
        hidden = driven.new_zeros(clients, batch, 4 * wide)
        before, state = cells.new_zeros(clients, batch, wide), None
        steps = zip(*map(_positions, (driven, gates, cells, states)), strict=True)
        for drive, gate, cell, new in steps:
            if state is not None:
                torch.bmm(state, turned, out=hidden)
            cell_step(drive, hidden, bias, before, gate, cell, new)
            before, state = cell, new
        ctx.save_for_backward(weight, states, gates, cells)
        return states

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, states, gates, cells = ctx.saved_tensors
        clients, _, batch, wide = states.shape
        cell_step = _kernel("lstm_cell_backward", states) or _cell_backward
        d_gates, d_states = torch.empty_like(gates), d_outputs[0].contiguous()
        d_cell = cells.new_zeros(clients, batch, wide)
        later = states.new_zeros(clients, batch, wide)
        befores = (torch.zeros_like(d_cell), *_positions(cells)[:-1])
        steps = zip(*map(_positions, (d_states, gates, cells, d_gates)), befores, strict=True)
        for above, gate, cell, d_gate, before in reversed(list(steps)):
            cell_step(above, later, d_cell, gate, cell, before, d_gate)
            torch.bmm(d_gate, weight, out=later)
        d_weight = torch.bmm(d_gates[:, 1:].flatten(1, 2).mT, states[:, :-1].flatten(1, 2))
        return d_gates, d_weight, d_gates.sum(dim=(1, 2))


def _positions(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.unbind(dim=1)


def _cell(
    driven: Tensor, hidden: Tensor, bias: Tensor, before: Tensor,
    gates: Tensor, cell: Tensor, state: Tensor,
) -> None:  # fmt: skip
    wide = cell.shape[-1]
    torch.add(driven, hidden, out=gates)
    gates += bias[:, None]
    gates[..., : 2 * wide].sigmoid_()
    gates[..., 2 * wide : 3 * wide].tanh_()
    gates[..., 3 * wide :].sigmoid_()
    i, f, g, o = gates.chunk(4, dim=-1)
    torch.mul(f, before, out=cell).addcmul_(i, g)
    torch.mul(o, cell.tanh(), out=state)


def _cell_backward(
    from_above: Tensor, from_later: Tensor, d_cell: Tensor,
    gates: Tensor, cell: Tensor, before: Tensor, d_gates: Tensor,
) -> None:  # fmt: skip
    i, f, g, o = gates.chunk(4, dim=-1)
    d_i, d_f, d_g, d_o = d_gates.chunk(4, dim=-1)
    d_state, squashed = from_above + from_later, cell.tanh()
    torch.mul(d_state, squashed, out=d_o).mul_(o - o * o)
    d_cell.addcmul_(d_state * o, 1 - squashed * squashed)
    torch.mul(d_cell, g, out=d_i).mul_(i - i * i)
    torch.mul(d_cell, before, out=d_f).mul_(f - f * f)
    torch.mul(d_cell, i, out=d_g).mul_(1 - g * g)
    d_cell.mul_(f)


def _kernel(name: str, tensor: Tensor) -> Any:
    if not tensor.is_cuda:
        return None
    from dpfedls import kernels

    return getattr(kernels, name)
