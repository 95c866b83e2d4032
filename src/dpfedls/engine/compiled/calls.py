"""How layers are called: every layer is two functions of machine code with the same signature each.

``forward(sizes, options, weights, x, y, kept, work)`` computes the outputs ``y`` of one batch of
one client from its inputs ``x``. ``backward(sizes, options, weights, x, y, kept, d_y, d_x, work)``
computes the gradient ``d_x`` from ``d_y`` (which it may change), steps the layer's own weights, and
returns their squared distance from the centre. Both are called by address, so each is compiled once
and alone: a model costs the compilation of the layers it has, and of no others.

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
    """One layer's weights, its tensors one after the other as torch lists them.

    They are ``centre + inside · moved``: the last projection is a factor, so it costs no pass of
    its own, and a step needs no look at the centre to know how far it led.
    """

    values: np.ndarray  # memory for the weights themselves, see ``arrays.settle``
    centre: np.ndarray  # where they started
    moved: np.ndarray  # how far they went, before the last projection
    gradient: np.ndarray  # memory for as many
    inside: Any  # what the last projection leaves of that
    rate: Any
    keep: Any  # 1 − rate · weight decay


class Work(NamedTuple):
    """Memory that any layer may use during one call."""

    scratch: np.ndarray
    starts: np.ndarray  # where rows of a matrix start, see ``products``
    combine: Any  # addresses of the two products
    dots: Any


_i64: Any = types.Array(types.int64, 1, "C")
_f32: Any = types.Array(types.float32, 1, "C")
_WEIGHTS = types.NamedTuple((*(_f32,) * 4, *(types.float32,) * 3), Weights)
_WORK = types.NamedTuple((_f32, _i64, types.int64, types.int64), Work)
FORWARD = types.void(_i64, _f32, _WEIGHTS, _f32, _f32, _f32, _WORK)
BACKWARD = types.float32(_i64, _f32, _WEIGHTS, _f32, _f32, _f32, _f32, _f32, _WORK)


def _forward_at(typing, address, sizes, options, weights, x, y, kept, work):
    """Call the forward function at an address."""
    return FORWARD.return_type(types.int64, *FORWARD.args), called_as(FORWARD)


def _backward_at(typing, address, sizes, options, weights, x, y, kept, d_y, d_x, work):
    """Call the backward function at an address."""
    return BACKWARD.return_type(types.int64, *BACKWARD.args), called_as(BACKWARD)


def called_as(signature: Any) -> Any:
    """How to call a function with this signature at an address, the first argument."""

    def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
        returns, *kinds = map(context.get_value_type, (signature.return_type, *signature.args))
        address, *arguments = values
        function = builder.inttoptr(address, ir.FunctionType(returns, kinds).as_pointer())
        return builder.call(function, arguments)

    return generate


# Numba passes ``typing``, not the caller.
forward_at: Any = intrinsic(_forward_at)
backward_at: Any = intrinsic(_backward_at)
