"""Line charts as inline SVG: no plotting package, no script, readable in any browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple, TypeAlias

import numpy as np

# Okabe and Ito's colours, told apart by colour-blind readers too; page.css has them for screens.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("", "7 3", "2 3", "9 3 2 3")  # told apart in grey print too
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 460, 270, 58, 40, 10, 14
_MOST_POINTS = 400  # of a line; a screen shows no more, and a page stays small

Point: TypeAlias = tuple[float, float]


class Line(NamedTuple):
    """Points of a line, and perhaps the lowest and highest y at each of them."""

    points: Sequence[Point]
    band: Sequence[tuple[float, float]] = ()


def line_chart(
    lines: Mapping[str, Line], title: str, x_label: str, y_label: str, *, log_y: bool = False
) -> str:
    """A figure with one line per name; nothing where no line has a point."""
    kept = {name: _shown(line, log_y) for name, line in lines.items()}
    kept = {name: line for name, line in kept.items() if line.points}
    if not kept:
        return ""
    spans = [np.array([*line.points, *_edges(line)]) for line in kept.values()]
    (x_low, y_low), (x_high, y_high) = (
        np.min([s.min(axis=0) for s in spans], axis=0),
        np.max([s.max(axis=0) for s in spans], axis=0),
    )
    y_ticks = _decades(y_low, y_high) if log_y else _ticks(y_low, y_high)
    y_low, y_high = min(y_low, y_ticks[0]), max(y_high, y_ticks[-1])
    x_scale = (_WIDTH - _LEFT - _RIGHT) / ((x_high - x_low) or 1)
    y_scale = (_HEIGHT - _TOP - _BOTTOM) / ((y_high - y_low) or 1)

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - x_low) * x_scale
        return f"{across:.1f},{_HEIGHT - _BOTTOM - (y - y_low) * y_scale:.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in y_ticks:
        y = float(place(x_low, tick).partition(",")[2])
        said = f"{10**tick:g}" if log_y else f"{tick:g}"
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{said}</text>'
        )
    for tick in (t for t in _ticks(x_low, x_high) if x_low <= t <= x_high):
        x = place(tick, y_low).partition(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - 22}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text x="{(_WIDTH + _LEFT) / 2}" y="{_HEIGHT - 5}" text-anchor="middle">'
        f'{escape(x_label)}</text><text transform="translate(11 {_HEIGHT / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    for k, line in enumerate(kept.values()):
        if line.band:
            xs = [x for x, _ in line.points]
            low = [place(x, b[0]) for x, b in zip(xs, line.band, strict=True)]
            high = [place(x, b[1]) for x, b in zip(xs, line.band, strict=True)]
            around = " ".join([*low, *reversed(high)])
            parts.append(f'<polygon class="band f{k % 7}" points="{around}"/>')
    for k, line in enumerate(kept.values()):
        path = " ".join(place(*point) for point in line.points)
        parts.append(f'<polyline {_look(k)} points="{path}"/>')
    legend = _legend(list(kept)) if len(kept) > 1 else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{''.join(parts)}</svg>{legend}</figure>"
    )


def _look(k: int) -> str:
    dash = _DASHES[(k // len(COLOURS) + k) % len(_DASHES)]
    return f'class="s{k % 7}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><polyline {_look(k)} points="0,5 26,5"/>'
        f"</svg>{escape(name)}</li>"
        for k, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _shown(line: Line, log_y: bool) -> Line:
    """The points that can be drawn, not too many of them, the last one always among them."""
    bands = line.band or [point[1:] * 2 for point in line.points]
    fine = [
        (point, band)
        for point, band in zip(line.points, bands, strict=True)
        if all(map(math.isfinite, (*point, *band))) and not (log_y and min(point[1], *band) <= 0)
    ]
    step = -(-len(fine) // _MOST_POINTS) or 1
    fine = fine[::-1][::step][::-1]
    up = math.log10 if log_y else float
    points = [(float(x), up(y)) for (x, y), _ in fine]
    return Line(points, [(up(a), up(b)) for _, (a, b) in fine] if line.band else ())


def _edges(line: Line) -> list[Point]:
    pairs = zip(line.points, line.band, strict=True) if line.band else ()
    return [(x, y) for (x, _), band in pairs for y in band]


def _decades(low: float, high: float) -> list[float]:
    """Whole powers of ten around the range; every second one where there are many."""
    first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
    return [float(k) for k in range(first, max(last, first + 1) + 1, 1 + (last - first) // 6)]


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover the range."""
    rough = (high - low) / 4 or abs(high) / 4 or 1.0
    unit = 10 ** np.floor(np.log10(rough))
    step = unit * next(m for m in (1, 2, 2.5, 5, 10) if m * unit >= rough)
    first = np.floor(low / step + 1e-9)
    ticks = [float(f"{step * (first + k):.10g}") for k in range(8)]
    return [t for t in ticks if low - step / 2 <= t <= high + step / 2]
