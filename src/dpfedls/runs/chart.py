"""Line charts as inline SVG: no plotting package, no script, readable in any browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 560, 320, 56, 44, 28, 120

Series = Mapping[str, Sequence[tuple[float, float]]]


def line_chart(series: Series, title: str, x_label: str, y_label: str) -> str:
    """One line a series, labelled at its right end."""
    points = np.array([p for line in series.values() for p in line if np.isfinite(p).all()])
    if len(points) == 0:
        return ""
    (x_low, y_low), (x_high, y_high) = points.min(axis=0), points.max(axis=0)
    y_ticks = _ticks(y_low, y_high)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])
    x_scale = (_WIDTH - _LEFT - _RIGHT) / ((x_high - x_low) or 1)
    y_scale = (_HEIGHT - _TOP - _BOTTOM) / ((y_high - y_low) or 1)

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (x - x_low) * x_scale, _HEIGHT - _BOTTOM - (y - y_low) * y_scale

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="16" class="title">{escape(title)}</text>',
    ]
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in (t for t in _ticks(x_low, x_high) if x_low <= t <= x_high):
        x, _ = place(tick, y_low)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 26}" text-anchor="middle">{tick:g}</text>')
    middle = (_WIDTH + _LEFT - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(12 {_HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    ends = _spread([place(*line[-1])[1] for line in series.values()])
    for k, ((label, line), end) in enumerate(zip(series.items(), ends, strict=True)):
        colour = COLOURS[k % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in line))
        parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 6}" y="{end + 4:.1f}" style="fill:{colour}">'
            f"{escape(label)}</text>"
        )
    return "".join([*parts, "</svg>"])


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover the range."""
    rough = (high - low) / 4 or abs(high) / 4 or 1.0
    unit = 10 ** np.floor(np.log10(rough))
    step = unit * next(m for m in (1, 2, 2.5, 5, 10) if m * unit >= rough)
    first = np.floor(low / step + 1e-9)
    ticks = [float(f"{step * (first + k):.10g}") for k in range(8)]
    return [t for t in ticks if low - step / 2 <= t <= high + step / 2]


def _spread(heights: list[float], gap: float = 13.0) -> list[float]:
    """Label heights, moved apart where lines end close together."""
    placed = dict.fromkeys(range(len(heights)), 0.0)
    last = -np.inf
    for k in sorted(placed, key=lambda k: heights[k]):
        last = max(heights[k], last + gap)
        placed[k] = last
    overflow = max(0.0, last - (_HEIGHT - _BOTTOM - 4))
    return [placed[k] - overflow for k in range(len(heights))]
