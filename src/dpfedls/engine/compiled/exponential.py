"""``e^x`` in single precision, of one number or of a register of them: the library's is slow."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dpfedls.engine.jit import jit

# Adding 1.5 · 2²³ leaves no fraction, so the last bits of the sum are a whole number: k + 127.
_ROUND = 1.5 * 2**23 + 127


def exponential_code(builder: Any, x: Any) -> Any:
    """``e^x`` for −87 ≤ x ≤ 88, and the nearer end outside.

    e^x = 2^k e^r with |r| ≤ ln 2 / 2; six terms of e^r are exact to 1.2e-7, and 2^k is written
    into the exponent of a float, as the integer that has its bits. NaN stays NaN, by r.
    """
    x = builder.select(builder.fcmp_ordered("<", x, constant(x, -87.0)), constant(x, -87.0), x)
    x = builder.select(builder.fcmp_ordered(">", x, constant(x, 88.0)), constant(x, 88.0), x)
    rounded = fma(builder, x, constant(x, 1.44269504), constant(x, _ROUND))
    k = builder.fsub(rounded, constant(x, _ROUND))
    r = fma(builder, k, constant(x, -0.693359375), x)
    r = fma(builder, k, constant(x, 2.12194440e-4), r)
    power = constant(x, 1 / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        power = fma(builder, power, r, constant(x, coefficient))
    bits = builder.bitcast(rounded, _like(x, ir.IntType(32)))
    bits = builder.shl(bits, ir.Constant(bits.type, _each(x, 23)))
    return builder.fmul(power, builder.bitcast(bits, x.type))


def logistic_code(builder: Any, x: Any) -> Any:
    """``1 / (1 + e^-x)``."""
    one, power = constant(x, 1.0), exponential_code(builder, builder.fneg(x))
    return builder.fdiv(one, builder.fadd(one, power))


def tanh_code(builder: Any, x: Any) -> Any:
    """``tanh x = 2 σ(2x) − 1``, exact to 3e-7."""
    share = logistic_code(builder, builder.fadd(x, x))
    return fma(builder, share, constant(x, 2.0), constant(x, -1.0))


def constant(x: Any, value: float) -> Any:
    """A number, in every place of a register if ``x`` is one."""
    return ir.Constant(x.type, _each(x, value))


def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """``x · y + z``, rounded once."""
    name = f"llvm.fma.v{_lanes(x)}f32" if _lanes(x) else "llvm.fma.f32"
    kind = ir.FunctionType(x.type, [x.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), (x, y, z))


def _lanes(x: Any) -> int:
    return x.type.count if isinstance(x.type, ir.VectorType) else 0


def _like(x: Any, kind: Any) -> Any:
    return ir.VectorType(kind, _lanes(x)) if _lanes(x) else kind


def _each(x: Any, value: Any) -> Any:
    return [value] * _lanes(x) if _lanes(x) else value


def _exponential(typing, x):
    """``e^x`` of one number."""
    return types.float32(types.float32), lambda _, builder, __, values: exponential_code(
        builder, *values
    )


_exponential_of: Any = intrinsic(_exponential)


@jit
def exponential(x):
    """``e^x`` for −87 ≤ x ≤ 88, and the nearer end outside."""
    return _exponential_of(x)
