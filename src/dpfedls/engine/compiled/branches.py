"""A sum of two ways through a model: ``x + body(x)``; see ``residual.Residual``.

The first of the two layers, the fork, stands before the body, the second, the join, behind it, and
they share one ``kept``: forwards it carries x past the body, backwards the gradient.
"""

from __future__ import annotations

from dpfedls.engine.compiled.arrays import ZERO, copy


def fork(sizes, options, weights, x, y, kept, work):
    """``y = x``, and a copy to join later."""
    copy(x, y)
    copy(x, kept)


def fork_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy``, plus the gradient that went past the body."""
    for t in range(len(d_x)):
        d_x[t] = d_y[t] + kept[t]
    return ZERO


def join(sizes, options, weights, x, y, kept, work):
    """``y = x`` plus what the fork was given."""
    for t in range(len(y)):
        y[t] = x[t] + kept[t]


def join_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy``, and a copy for the fork."""
    copy(d_y, kept)
    copy(d_y, d_x)
    return ZERO
