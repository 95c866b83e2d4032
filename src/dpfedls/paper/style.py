"""One look for all figures, and the four files that each of them becomes.

Sizes are those of the printed page: 7 inches is the full width of the text, 8 points its labels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from string import ascii_lowercase
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedls.errors import InputError
from dpfedls.pages.chart import COLOURS
from dpfedls.paper.item import Item, Options
from dpfedls.paper.provenance import page, provenance
from dpfedls.privacy.durable import write_whole
from dpfedls.runs.jsonable import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from dpfedls.paper.cells import Run
    from dpfedls.paper.kept import Earlier

WIDTH = 7.0  # inches
GREY = "#777777"
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))  # lines told apart in print

_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titlepad": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.wspace": 0.08,
    "figure.constrained_layout.hspace": 0.06,
    "pdf.fonttype": 42,  # fonts embedded as outlines that printers and editors take
    "mathtext.fontset": "dejavusans",
}


def publish(
    item: str,
    options: Options,
    *,
    title: str,
    caption: str,
    height: float,
    draw: Callable[[Figure, Any], None],
    data: dict[str, Any],
    cells: list[dict[str, Any]],
    runs: Sequence[Sequence[Run]] = (),
    earlier: Earlier | None = None,
    began: float,
) -> Item:
    """Write ITEM.pdf, ITEM.png, ITEM.json (what is drawn, how it was made) and ITEM.md (in words).

    Guarantees: the same data give the same bytes of PDF and PNG.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    files = [options.out / f"{item}.{kind}" for kind in ("pdf", "png", "json", "md")]
    picture(files[:2], title, options.settings, height, draw, data)
    facts = provenance(options, item, began, runs, earlier) | {"title": title}
    content = plain({**facts, "cells": cells, "data": data})
    write_whole(files[2], json.dumps(content, indent=1, ensure_ascii=False).encode())
    paragraphs = [" ".join(text.split()) for text in caption.split("\n\n")]
    text = page(facts, [f"![{title}]({item}.png)", *paragraphs])
    write_whole(files[3], text.encode())
    return Item(item, files, cells)


def picture(
    files: Sequence[Path],
    title: str,
    settings: Sequence[str],
    height: float,
    draw: Callable[[Figure, Any], None],
    data: dict[str, Any],
) -> None:
    """Draw the data into each of the files.

    Title and settings stand on the picture too: it may be shown without its page, and a stand-in
    or a shortened run must say what it is.
    """
    require_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    shown = fill(title, 95)
    if settings:
        shown += "\n" + fill(f"Not the paper's settings: {' '.join(settings)}", 95)
    with style.context(["default", _STYLE]):  # whatever a matplotlibrc of the reader's says
        figure = Figure(figsize=(WIDTH, height + 0.25 + 0.14 * shown.count("\n")))
        figure.suptitle(shown, x=0.01, ha="left", fontsize=8.5, fontweight="bold")
        draw(figure, data)
        for file in files:
            pdf = file.suffix == ".pdf"
            figure.savefig(file, dpi=200, metadata={"CreationDate": None} if pdf else None)


def require_matplotlib() -> None:
    """Refuse before hours of training, not after, where nothing could be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "figures need the package matplotlib, which is not installed; "
            "run: pip install 'dpfedls[report]'"
        ) from error


def grid(figure: Figure, rows: int, columns: int, **sharing: Any) -> list[Axes]:
    """Panels in reading order."""
    return list(figure.subplots(rows, columns, squeeze=False, **sharing).flat)


def head(axes: Axes, number: int, text: str) -> None:
    """(a), (b), … and what the panel shows."""
    axes.set_title(f"({ascii_lowercase[number]}) {text}")


def plain_numbers(axis: Axis) -> None:
    """Marks at 1, 2, 5, 10, … on a logarithmic axis, written out."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def band(axes: Axes, x: Sequence[float], values: np.ndarray, **look: Any) -> None:
    """The mean over the rows, and one standard deviation around it where there are several."""
    mean = values.mean(axis=0)
    axes.plot(x, mean, **look)
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(
            x, mean - spread, mean + spread, color=look["color"], alpha=0.15, linewidth=0
        )


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def look(strength: float | None) -> dict[str, Any]:
    """The colour and the dashes of a method, the same in all figures; None is without privacy."""
    known = {None: (0, 2), 0.0: (2, 1), 0.5: (3, 3), 1.0: (1, 0), 1.5: (4, 2), 2.0: (3, 3)}
    ink, dash = known.get(strength, (4, 2))
    return {"color": colour(ink), "linestyle": DASHES[dash]}


def few_rounds(axis: Axis) -> None:
    """Three to six whole numbers along an axis of rounds."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))


def signed(value: float) -> str:
    """Two decimals, with a minus sign that is one."""
    return f"{value:.2f}".replace("-", "−")


def colour(number: int) -> str:
    """Okabe and Ito's colours in order, black first."""
    return COLOURS[number % len(COLOURS)]
