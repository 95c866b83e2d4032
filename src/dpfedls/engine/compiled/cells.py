"""The cells of an LSTM at one position: rows of a few registers, each treated in one pass.

Numba's loops over so many short arrays fall back to one number at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from dpfedls.engine.compiled.exponential import constant, fma, logistic_code, tanh_code
from dpfedls.engine.compiled.registers import LANES, Code, int64


def _lstm_cells(typing, gates, before, cells, squashed, states, count, hidden):
    """From sums to gates, in place; cells, their tanh and the states from the cells before."""
    signature = types.void(gates, before, cells, squashed, states, types.int64, types.int64)

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        code = Code(builder)
        gates, *others = (code.data(context, kinds, values, k) for k in range(5))

        def part(row: Any, at: Any, mask: Any) -> None:
            places, (old, cell, tanh, state) = _places(code, gates, others, row, at, values[6])
            i, f, g, o = (code.load(place, mask) for place in places)
            i, f, o = (logistic_code(builder, x) for x in (i, f, o))
            g = tanh_code(builder, g)
            new = fma(builder, f, code.load(old, mask), builder.fmul(i, g))
            squashed = tanh_code(builder, new)
            results = (i, f, g, o, new, squashed, builder.fmul(o, squashed))
            for result, place in zip(results, (*places, cell, tanh, state), strict=True):
                code.store(result, place, mask)

        _rows(code, values[5], values[6], part)
        return context.get_dummy_value()

    return signature, generate


def _lstm_cells_backward(
    typing, gates, before, squashed, d_y, later, d_cell, by_bias, count, hidden
):
    """From gates to their gradients, in place, added to ``by_bias``; ``d_cell`` goes back one.

    ``later`` is the gradient of the states by the gates one position later.
    """
    signature = types.void(
        gates, before, squashed, d_y, later, d_cell, by_bias, types.int64, types.int64
    )

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        code, hidden = Code(builder), values[8]
        gates, *others = (code.data(context, kinds, values, k) for k in range(6))
        by_bias = code.data(context, kinds, values, 6)
        mul = builder.fmul

        def part(row: Any, at: Any, mask: Any) -> None:
            def rest(x: Any) -> Any:  # of a sigmoid: x (1 − x)
                return fma(builder, builder.fneg(x), x, x)

            def square(x: Any) -> Any:  # of a tanh: 1 − x²
                return fma(builder, builder.fneg(x), x, constant(x, 1.0))

            places, (old, tanh, d_y, later, d_cell) = _places(code, gates, others, row, at, hidden)
            i, f, g, o = (code.load(place, mask) for place in places)
            squashed = code.load(tanh, mask)
            d_state = builder.fadd(code.load(d_y, mask), code.load(later, mask))
            d = fma(builder, mul(d_state, o), square(squashed), code.load(d_cell, mask))
            code.store(mul(d, f), d_cell, mask)
            gradients = (
                mul(mul(d, g), rest(i)),
                mul(mul(d, code.load(old, mask)), rest(f)),
                mul(mul(d, i), square(g)),
                mul(mul(d_state, squashed), rest(o)),
            )
            for gate, (gradient, place) in enumerate(zip(gradients, places, strict=True)):
                code.store(gradient, place, mask)
                total = code.at(by_bias, _column(code, gate, at, hidden))
                code.store(builder.fadd(code.load(total, mask), gradient), total, mask)

        _rows(code, values[7], hidden, part)
        return context.get_dummy_value()

    return signature, generate


def _places(
    code: Code, gates: Any, others: list[Any], row: Any, at: Any, hidden: Any
) -> tuple[list[Any], list[Any]]:
    """Where the four gates of a row stand, and the same numbers of all other arrays."""
    first = code.builder.mul(row, hidden)
    wide = code.at(gates, code.builder.mul(first, int64(4)))
    return (
        [code.at(wide, _column(code, gate, at, hidden)) for gate in range(4)],
        [code.at(other, code.builder.add(first, at)) for other in others],
    )


def _column(code: Code, gate: int, at: Any, hidden: Any) -> Any:
    return code.builder.add(code.builder.mul(int64(gate), hidden), at)


def _rows(code: Code, count: Any, hidden: Any, part: Callable[[Any, Any, Any], None]) -> None:
    """Every part of every row; the last part of a row may be less than a register."""
    whole = code.builder.and_(hidden, int64(-LANES))
    mask, zero = code.first(code.builder.sub(hidden, whole)), int64(0)

    def parts(row: Any, start: Any, end: Any, mask: Any) -> None:
        def one(at: Any, _: list[Any]) -> list[Any]:
            part(row, at, mask)
            return []

        code.loop(start, end, LANES, [], one)

    def row(number: Any, _: list[Any]) -> list[Any]:
        parts(number, zero, whole, None)
        parts(number, whole, hidden, mask)
        return []

    code.loop(zero, count, 1, [], row)


# Numba passes ``typing``, not the caller.
lstm_cells: Any = intrinsic(_lstm_cells)
lstm_cells_backward: Any = intrinsic(_lstm_cells_backward)
