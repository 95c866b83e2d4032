"""How layers are called: every layer is two functions of machine code with the same signature each.

``forward(sizes, options, weights, x, y, kept, work)`` computes the outputs ``y`` of one batch of
one client from its inputs ``x``. ``backward(sizes, options, weights, x, y, kept, d_y, d_x, work)``
computes the gradient ``d_x`` from ``d_y``, steps the layer's own weights, and returns their squared
distance from the centre. Both are called by address, so each is compiled once and alone: a model
costs the compilation of the layers it has, and of no others.

All values are flat arrays of float32, sample after sample unless ``sequences`` says otherwise.
``kept`` is memory that the layer's own backward pass sees again. ``d_x`` is empty where nobody
needs that gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


class Weights(NamedTuple):
    """One layer's weights, its tensors one after the other as torch lists them."""

    values: np.ndarray
    centre: np.ndarray  # where they started
    gradient: np.ndarray  # memory for as many
    rate: Any
    keep: Any  # 1 − rate · weight decay


class Work(NamedTuple):
    """Memory that any layer may use during one call."""

    scratch: np.ndarray
    starts: np.ndarray  # where rows of a matrix start, see ``products``


_i64: Any = types.Array(types.int64, 1, "C")
_f32: Any = types.Array(types.float32, 1, "C")
_WEIGHTS = types.NamedTuple((_f32, _f32, _f32, types.float32, types.float32), Weights)
_WORK = types.NamedTuple((_f32, _i64), Work)
FORWARD = types.void(_i64, _f32, _WEIGHTS, _f32, _f32, _f32, _WORK)
BACKWARD = types.float32(_i64, _f32, _WEIGHTS, _f32, _f32, _f32, _f32, _f32, _WORK)


def _forward_at(typing, address, sizes, options, weights, x, y, kept, work):
    """Call the forward function at an address."""
    return FORWARD.return_type(types.int64, *FORWARD.args), _called_as(FORWARD)


def _backward_at(typing, address, sizes, options, weights, x, y, kept, d_y, d_x, work):
    """Call the backward function at an address."""
    return BACKWARD.return_type(types.int64, *BACKWARD.args), _called_as(BACKWARD)


def _called_as(signature: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        returns, *kinds = map(context.get_value_type, (signature.return_type, *signature.args))
        address, *arguments = values
        function = builder.inttoptr(address, ir.FunctionType(returns, kinds).as_pointer())
        return builder.call(function, arguments)

    return generate


# Numba passes ``typing``, not the caller.
forward_at: Any = intrinsic(_forward_at)
backward_at: Any = intrinsic(_backward_at)
