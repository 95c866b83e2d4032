"""Blocks of a matrix product whose results stay in registers from the first term to the last.

Numba's own loops write a result back after a few terms. So these are written in LLVM's vectors,
for every size of a block: Python counts rows and columns, LLVM sees a straight line of products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
LANES = 16 if _WIDE else 8  # numbers in a register
# A block of results, what it is multiplied with and one number more fill 32 registers, or 16.
ROWS, COLUMNS = (6, 4) if _WIDE else (4, 3)

_i64, _i32, _f32 = ir.IntType(64), ir.IntType(32), ir.FloatType()
_vector, _lanes = ir.VectorType(_f32, LANES), ir.VectorType(_i32, LANES)
_mask = ir.VectorType(ir.IntType(1), LANES)
_ZERO = ir.Constant(_vector, [0.0] * LANES)


def _combine_block(
    typing, rows, vectors, a, a_row, a_column, b, starts, count, out, out_stride, scale, rest
):
    """``out = scale · out + a b``, ``rows`` × ``vectors`` registers of it; Σ out².

    Without vectors it is one register, of which only the first ``rest`` numbers count. A scale of
    zero forgets what was there, whatever it was.
    """
    signature = types.float32(
        rows, vectors, a, a_row, a_column, b, starts, count, out, out_stride, scale, rest
    )

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        rows, vectors, _, a_row, a_column, _, _, count, _, out_stride, scale, rest = values
        code = Code(builder)
        a, b, starts, out = (code.data(context, kinds, values, k) for k in (2, 5, 6, 8))
        mask = code.first(rest)

        def block(case: tuple[int, int]) -> Any:
            rows, vectors = case
            some, vectors = (None, vectors) if vectors else (mask, 1)
            places = [
                code.at(code.at(out, builder.mul(int64(i), out_stride)), int64(j * LANES))
                for i in range(rows)
                for j in range(vectors)
            ]
            scales = code.splat(scale)
            fresh = builder.fcmp_ordered("==", scale, ir.Constant(_f32, 0.0))
            old = [builder.fmul(scales, code.load(place, some)) for place in places]
            begun = [builder.select(fresh, _ZERO, x) for x in old]

            def term(k: Any, sums: list[Any]) -> list[Any]:
                row = code.at(b, builder.load(code.at(starts, k)))
                right = [code.load(code.at(row, int64(j * LANES)), some) for j in range(vectors)]
                column = code.at(a, builder.mul(k, a_column))
                left = [
                    code.splat(builder.load(code.at(column, builder.mul(int64(i), a_row))))
                    for i in range(rows)
                ]
                factors = [(x, y) for x in left for y in right]
                return [code.fma(x, y, z) for (x, y), z in zip(factors, sums, strict=True)]

            sums = code.loop(int64(0), count, 1, begun, term)
            squares = [_ZERO] * vectors  # several, since each waits for the one before
            for k, (x, place) in enumerate(zip(sums, places, strict=True)):
                code.store(x, place, some)
                squares[k % vectors] = code.fma(x, x, squares[k % vectors])
            for square in squares[1:]:
                squares[0] = builder.fadd(squares[0], square)
            return builder.extract_element(code.totals(squares[:1]), ir.Constant(_i32, 0))

        cases = [(r, v) for v in (COLUMNS, 1, 0) for r in range(1, ROWS + 1)]
        return code.switch([rows, vectors], cases, block)

    return signature, generate


def _dots_block(
    typing, rows, a, a_stride, b, starts, columns, length, out, out_stride, pieces, a_apart, b_apart
):
    """``out[i, j] += a[i] · b[j]`` for up to ``COLUMNS`` j; rows are pieces of ``length`` numbers.

    The pieces of a row lie apart, and their sums are added up before anything is stored.
    """
    signature = types.void(
        rows, a, a_stride, b, starts, columns, length, out, out_stride, pieces, a_apart, b_apart
    )

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        rows, _, a_stride, _, _, columns, length, _, out_stride, pieces, a_apart, b_apart = values
        code = Code(builder)
        a, b, starts, out = (code.data(context, kinds, values, k) for k in (1, 3, 4, 7))
        whole = builder.and_(length, int64(-LANES))
        mask = code.first(builder.sub(length, whole))

        def block(case: tuple[int]) -> None:
            rows, wide = case[0], COLUMNS
            # Where there are fewer columns the last is computed again, and not stored.
            last = builder.sub(columns, int64(1))
            each = [code.smaller(int64(j), last) for j in range(wide)]
            right = [code.at(b, builder.load(code.at(starts, j))) for j in each]
            left = [code.at(a, builder.mul(int64(i), a_stride)) for i in range(rows)]

            def piece(k: Any, sums: list[Any]) -> list[Any]:
                lefts = [code.at(row, builder.mul(k, a_apart)) for row in left]
                rights = [code.at(row, builder.mul(k, b_apart)) for row in right]

                def terms(t: Any, sums: list[Any], some: Any) -> list[Any]:
                    ys = [code.load(code.at(row, t), some) for row in rights]
                    xs = [code.load(code.at(row, t), some) for row in lefts]
                    factors = [(x, y) for x in xs for y in ys]
                    return [code.fma(x, y, z) for (x, y), z in zip(factors, sums, strict=True)]

                sums = code.loop(int64(0), whole, LANES, sums, lambda t, s: terms(t, s, None))
                return code.loop(whole, length, LANES, sums, lambda t, s: terms(t, s, mask))

            sums = code.loop(int64(0), pieces, 1, [_ZERO] * (rows * wide), piece)
            for j in range(wide):
                totals = code.totals(sums[j::wide])
                with builder.if_then(builder.icmp_signed("<=", int64(j), last)):
                    for i in range(rows):
                        place = code.at(
                            out,
                            builder.add(builder.mul(int64(i), out_stride), int64(j)),
                        )
                        total = builder.extract_element(totals, ir.Constant(_i32, i))
                        builder.store(builder.fadd(builder.load(place), total), place)

        code.switch([rows], [(r,) for r in range(1, ROWS + 1)], block)
        return context.get_dummy_value()

    return signature, generate


def _move(typing, source, at, target, to, count):
    """``target[to:][:count] = source[at:][:count]``: a line of an image is short for a loop."""
    signature = types.void(source, types.int64, target, types.int64, types.int64)

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        _, at, _, to, count = values
        code = Code(builder)
        source, target = (code.data(context, kinds, values, k) for k in (0, 2))
        source, target = code.at(source, at), code.at(target, to)
        whole = builder.and_(count, int64(-LANES))

        def part(t: Any, mask: Any) -> list[Any]:
            code.store(code.load(code.at(source, t), mask), code.at(target, t), mask)
            return []

        code.loop(int64(0), whole, LANES, [], lambda t, _: part(t, None))
        rest = code.first(builder.sub(count, whole))
        code.loop(whole, count, LANES, [], lambda t, _: part(t, rest))
        return context.get_dummy_value()

    return signature, generate


def _take_second(typing, source, at, target, to, count):
    """``target[to:][:count] = source[at:][::2]``."""
    signature = types.void(source, types.int64, target, types.int64, types.int64)

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        _, at, _, to, count = values
        code = Code(builder)
        source, target = (code.data(context, kinds, values, k) for k in (0, 2))
        even = ir.Constant(_lanes, list(range(0, 2 * LANES, 2)))
        # Before the last part, the number behind what is taken is there to be read.
        whole = builder.and_(builder.sub(count, int64(1)), int64(-LANES))
        left = builder.sub(count, whole)
        seen = builder.sub(builder.add(left, left), int64(1))
        masks = [code.first(builder.sub(seen, int64(k))) for k in (0, LANES)]

        def part(t: Any, masks: list[Any], to_store: Any) -> list[Any]:
            first = code.at(source, builder.add(at, builder.add(t, t)))
            halves = [
                code.load(code.at(first, int64(k)), mask)
                for k, mask in zip((0, LANES), masks, strict=True)
            ]
            place = code.at(target, builder.add(to, t))
            code.store(builder.shuffle_vector(*halves, even), place, to_store)
            return []

        code.loop(int64(0), whole, LANES, [], lambda t, _: part(t, [None, None], None))
        code.loop(whole, count, LANES, [], lambda t, _: part(t, masks, code.first(left)))
        return context.get_dummy_value()

    return signature, generate


def _put_second(typing, source, at, target, to, count):
    """``target[to:][: 2 * count : 2] = source[at:][:count]``; nothing between them is touched."""
    signature = types.void(source, types.int64, target, types.int64, types.int64)

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        _, at, _, to, count = values
        code = Code(builder)
        source, target = (code.data(context, kinds, values, k) for k in (0, 2))
        even = ir.Constant(_mask, [k % 2 == 0 for k in range(LANES)])
        whole = builder.and_(count, int64(-LANES))
        left = builder.sub(count, whole)

        def part(t: Any, mask: Any, masks: list[Any]) -> list[Any]:
            x = code.load(code.at(source, builder.add(at, t)), mask)
            first = code.at(target, builder.add(to, builder.add(t, t)))
            for k, some in zip((0, LANES), masks, strict=True):
                twice = ir.Constant(_lanes, [(k + j) // 2 for j in range(LANES)])
                spread = builder.shuffle_vector(x, x, twice)
                code.store(spread, code.at(first, int64(k)), some)
            return []

        both = [code.first(builder.sub(builder.add(left, left), int64(k))) for k in (0, LANES)]
        both = [builder.and_(mask, even) for mask in both]
        code.loop(int64(0), whole, LANES, [], lambda t, _: part(t, None, [even, even]))
        code.loop(whole, count, LANES, [], lambda t, _: part(t, code.first(left), both))
        return context.get_dummy_value()

    return signature, generate


def _turn(typing, source, row, target, to_row):
    """``target = sourceᵀ`` for ``LANES`` rows of ``LANES`` numbers, rows a stride apart."""
    signature = types.void(source, types.int64, target, types.int64)

    def generate(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        code = Code(builder)
        source, target = (code.data(context, kinds, values, k) for k in (0, 2))
        rows = range(LANES)
        block = [code.load(code.at(source, builder.mul(int64(r), values[1])), None) for r in rows]
        for bit in (1 << k for k in range(LANES.bit_length() - 1)):
            # The number at row r and place c goes where this bit of r and of c are exchanged.
            upper = ir.Constant(_lanes, [c if not c & bit else LANES + (c ^ bit) for c in rows])
            lower = ir.Constant(_lanes, [c | bit if not c & bit else LANES + c for c in rows])
            block = [
                builder.shuffle_vector(block[r & ~bit], block[r | bit], lower if r & bit else upper)
                for r in rows
            ]
        for r, x in zip(rows, block, strict=True):
            code.store(x, code.at(target, builder.mul(int64(r), values[3])), None)
        return context.get_dummy_value()

    return signature, generate


# Numba passes ``typing``, not the caller.
take_second: Any = intrinsic(_take_second)
put_second: Any = intrinsic(_put_second)
turn: Any = intrinsic(_turn)
move: Any = intrinsic(_move)
combine_block: Any = intrinsic(_combine_block)
dots_block: Any = intrinsic(_dots_block)


class Code:
    """Instructions on registers of ``LANES`` numbers."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def data(self, context: Any, kinds: Any, values: Any, number: int) -> Any:
        """Where an array's numbers start."""
        return context.make_array(kinds.args[number])(context, self.builder, values[number]).data

    def at(self, pointer: Any, places: Any) -> Any:
        return self.builder.gep(pointer, [places])

    def smaller(self, x: Any, y: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", x, y), x, y)

    def first(self, count: Any) -> Any:
        """The mask of the first so many numbers."""
        counts = self.splat(self.builder.trunc(count, _i32), _lanes)
        return self.builder.icmp_signed("<", ir.Constant(_lanes, list(range(LANES))), counts)

    def splat(self, x: Any, kind: Any = _vector) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(nothing, x, ir.Constant(_i32, 0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(_lanes, [0] * LANES))

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self._call("fma", "", _vector, x, y, z)

    def load(self, pointer: Any, mask: Any) -> Any:
        pointer = self.builder.bitcast(pointer, _vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=4)
        return self._call("masked.load", ".p0", _vector, pointer, int64(4, _i32), mask, _ZERO)

    def store(self, x: Any, pointer: Any, mask: Any) -> None:
        pointer = self.builder.bitcast(pointer, _vector.as_pointer())
        if mask is None:
            self.builder.store(x, pointer, align=4)
        else:
            self._call("masked.store", ".p0", ir.VoidType(), x, pointer, int64(4, _i32), mask)

    def totals(self, vectors: list[Any]) -> Any:
        """The sum of each of up to ``LANES`` vectors, in the first places of one.

        Neighbours are added, of two vectors at a time, until nothing has a neighbour.
        """
        even, odd = (ir.Constant(_lanes, list(range(k, 2 * LANES, 2))) for k in (0, 1))
        for _ in range(LANES.bit_length() - 1):
            pairs = [(x, vectors[min(k + 1, len(vectors) - 1)]) for k, x in enumerate(vectors)][::2]
            vectors = [
                self.builder.fadd(
                    self.builder.shuffle_vector(x, y, even), self.builder.shuffle_vector(x, y, odd)
                )
                for x, y in pairs
            ]
        return vectors[0]

    def loop(
        self,
        start: Any,
        end: Any,
        step: int,
        values: list[Any],
        body: Callable[[Any, list[Any]], list[Any]],
    ) -> list[Any]:
        """``for t in range(start, end, step): values = body(t, values)``."""
        builder, before = self.builder, self.builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("for", "do", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        t, *now = (builder.phi(value.type) for value in (start, *values))
        builder.cbranch(builder.icmp_signed("<", t, end), inside, after)
        builder.position_at_end(inside)
        following = [builder.add(t, int64(step)), *body(t, now)]
        for phi, first, then in zip((t, *now), (start, *values), following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(then, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return now

    def switch(
        self, values: list[Any], cases: list[tuple[Any, ...]], make: Callable[[Any], Any]
    ) -> Any:
        """What ``make`` makes of the case that the values are; they are one of the cases."""
        builder, key = self.builder, lambda case: case[0] + 64 * sum(case[1:])
        index = values[0]
        for value in values[1:]:
            index = builder.add(index, builder.mul(value, int64(64)))
        nowhere, after = (builder.append_basic_block(name) for name in ("none", "chosen"))
        choice, made = builder.switch(index, nowhere), []
        for case in cases:
            block = builder.append_basic_block("case")
            choice.add_case(int64(key(case)), block)
            builder.position_at_end(block)
            made.append((make(case), builder.block))
            builder.branch(after)
        builder.position_at_end(nowhere)
        builder.unreachable()
        builder.position_at_end(after)
        if made[0][0] is None:
            return None
        result = builder.phi(made[0][0].type)
        for value, block in made:
            result.add_incoming(value, block)
        return result

    def _call(self, name: str, kind: str, returns: Any, *arguments: Any) -> Any:
        """One of LLVM's own functions."""
        wanted = ir.FunctionType(returns, [x.type for x in arguments])
        name = f"llvm.{name}.v{LANES}f32{kind}"
        function = cgutils.get_or_insert_function(self.builder.module, wanted, name)
        return self.builder.call(function, arguments)


def int64(value: int, kind: Any = _i64) -> Any:
    """A constant."""
    return ir.Constant(kind, value)
