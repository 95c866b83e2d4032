"""The two products of machine code against NumPy, for whole blocks and for what is left of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpfedls.engine.compiled.arrays import transpose
from dpfedls.engine.compiled.products import (
    COMBINE,
    DOTS,
    combine,
    combine_at,
    dots,
    dots_at,
)
from dpfedls.engine.jit import address_of, jit

HEIGHTS, DEPTHS, WIDTHS = (1, 5, 6, 13), (1, 7), (1, 8, 16, 63, 64, 131)


@jit
def _combined(address, a, a_row, a_column, m, b, starts, count, length, out, out_stride, scale):
    return combine_at(
        address, a, a_row, a_column, m, b, starts, count, length, out, out_stride, scale
    )


@jit
def _dotted(address, a, m, b, starts, n, length, out, out_stride, pieces):
    apart = m * length, n * length
    dots_at(address, a, length, m, b, starts, n, length, out, out_stride, pieces, *apart)


def _matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_combine(scale):
    """Rows of b lie in any order, rows of the result apart; nothing between them is touched."""
    address, scale = address_of(combine, COMBINE), np.float32(scale)
    for m, count, length in itertools.product(HEIGHTS, DEPTHS, WIDTHS):
        a, b = _matrix(count, m), _matrix(count, length)
        starts = np.arange(count)[::-1] * length
        before = _matrix(m, length + 3)
        out = before.copy()
        if not scale:
            out[:, :length] = np.nan  # forgotten
        square = _combined(
            address, a.ravel(), 1, m, m, b.ravel(), starts, count, length, out.ravel(), length + 3,
            scale,
        )  # fmt: skip
        expected = scale * before[:, :length] + a.T @ b[::-1]
        np.testing.assert_allclose(out[:, :length], expected, atol=1e-5)
        np.testing.assert_array_equal(out[:, length:], before[:, length:])
        np.testing.assert_allclose(square, (expected**2).sum(), rtol=1e-5)


@pytest.mark.parametrize("pieces", [1, 3])
def test_dots(pieces):
    """A row may lie in pieces, one matrix after the other."""
    address = address_of(dots, DOTS)
    for m, n, length in itertools.product(HEIGHTS, (1, 4, 7), (*WIDTHS, 1024)):
        a, b = _matrix(pieces, m, length), _matrix(pieces, n, length)
        before = _matrix(m, n + 2)
        out = before.copy()
        starts = np.arange(n)[::-1] * length
        _dotted(address, a.ravel(), m, b.ravel(), starts, n, length, out.ravel(), n + 2, pieces)
        expected = before[:, :n] + np.einsum("pml,pnl->mn", a, b[:, ::-1])
        np.testing.assert_allclose(out[:, :n], expected, atol=1e-3)
        np.testing.assert_array_equal(out[:, n:], before[:, n:])


@pytest.mark.parametrize("shape", [(3, 5), (16, 16), (37, 64), (64, 37)])
def test_transpose(shape):
    """Whole blocks and what is left of them; nothing between rows is touched."""
    matrix, out = _matrix(*shape), np.zeros((shape[1], shape[0] + 3), np.float32)
    transpose(matrix.ravel(), out.ravel(), *shape, shape[0] + 3)
    np.testing.assert_array_equal(out[:, :-3], matrix.T)
    assert not out[:, -3:].any()
