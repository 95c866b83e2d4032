"""Digits as strokes of a pen, and the ink that they leave on the pixels of an image."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from dpfedls.engine.jit import exact_jit

SIDE = 32


def ink(
    digits: Tensor, x: Tensor, y: Tensor, size: Tensor, turn: Tensor, slant: Tensor, width: Tensor
) -> Tensor:
    """How much each pixel gets: 1 inside a stroke, 0 outside, soft between; one image a digit."""
    segments = _SEGMENTS[digits] * size[:, None, None, None]  # image, segment, end, (x, y)
    sx = segments[..., 0] + slant[:, None, None] * segments[..., 1]
    sy = segments[..., 1]
    c, s = turn.cos()[:, None, None], turn.sin()[:, None, None]
    px = c * sx - s * sy + x[:, None, None] + (SIDE - 1) / 2
    py = s * sx + c * sy + y[:, None, None] + (SIDE - 1) / 2
    nearest = torch.empty(len(digits), SIDE, SIDE)
    _square_distances(px.numpy(), py.numpy(), nearest.numpy())
    return (width[:, None, None] + 0.5 - nearest.sqrt_()).clamp_(0, 1)


@exact_jit
def _square_distances(px, py, out):
    """From each pixel to the nearest of the image's segments."""
    zero, one, little = np.float32(0), np.float32(1), np.float32(1e-9)
    out[:] = np.inf
    for n in range(len(out)):
        for k in range(px.shape[1]):
            ax, ay = px[n, k, 0], py[n, k, 0]
            dx, dy = px[n, k, 1] - ax, py[n, k, 1] - ay
            square = dx * dx + dy * dy + little  # some segments have no length
            for row in range(out.shape[1]):
                nearest, gy = out[n, row], np.float32(row) - ay
                for column in range(len(nearest)):
                    gx = np.float32(column) - ax
                    along = min(max((gx * dx + gy * dy) / square, zero), one)
                    off_x, off_y = gx - along * dx, gy - along * dy
                    nearest[column] = min(nearest[column], off_x * off_x + off_y * off_y)


def _arc(
    x: float, y: float, rx: float, ry: float, begin: float, end: float
) -> list[tuple[float, float]]:
    """Points along part of an ellipse, angles in turns, y downwards."""
    steps = max(3, round(8 * abs(end - begin)))
    turns = [begin + (end - begin) * k / steps for k in range(steps + 1)]
    return [(x + rx * math.cos(2 * math.pi * t), y + ry * math.sin(2 * math.pi * t)) for t in turns]


# Each digit as one line through points, in a box one high and about 0.6 wide.
_LINES = [
    _arc(0, 0, 0.3, 0.5, 0, 1),
    [(-0.15, -0.35), (0.02, -0.5), (0.02, 0.5)],
    [*_arc(0, -0.22, 0.28, 0.28, 0.5, 1.08), (-0.3, 0.5), (0.32, 0.5)],
    [*_arc(0, -0.25, 0.25, 0.25, 0.55, 1.25), *_arc(0, 0.23, 0.29, 0.27, 0.75, 1.45)],
    [(0.14, 0.5), (0.14, -0.5), (-0.32, 0.18), (0.32, 0.18)],
    [(0.28, -0.5), (-0.22, -0.5), (-0.26, -0.08), *_arc(0, 0.18, 0.3, 0.32, 0.65, 1.42)],
    [(0.2, -0.5), (-0.12, -0.15), *_arc(0, 0.2, 0.28, 0.3, 0.55, 1.6)],
    [(-0.3, -0.5), (0.3, -0.5), (-0.08, 0.5)],
    [*_arc(0, -0.25, 0.24, 0.25, 0.25, 1.25), *_arc(0, 0.25, 0.29, 0.26, 0.75, 1.75)],
    [(-0.2, 0.5), (0.12, 0.15), *_arc(0, -0.2, 0.28, 0.3, 0.05, 1.1)],
]
_LONGEST = max(len(line) for line in _LINES)
# All digits as equally many segments: short ones end in pieces of no length.
_SEGMENTS = torch.tensor(
    [list(itertools.pairwise([*line, *[line[-1]] * (_LONGEST - len(line))])) for line in _LINES]
)
