"""Figures again from their raw data: ``python -m dpfedls.paper.redraw docs/results``.

A figure's JSON holds what is drawn, so a change of style does not cost an hour of GPU time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpfedls.paper.figures import attack, curves, fourier, stability
from dpfedls.paper.style import picture

FIGURES = {
    **dict.fromkeys(("mnist-curves", "svhn-curves", "shakespeare-curves"), curves),
    **dict.fromkeys(("attack", "attack-svhn5k"), attack),
    **dict.fromkeys(("fourier", "fourier-mnist"), fourier),
    "stability": stability,
}


def redraw(folder: Path) -> list[Path]:
    """Draw the PNG of every figure of runs whose JSON is there; the files that were written."""
    drawn = []
    for item, figure in FIGURES.items():
        raw = folder / f"{item}.json"
        if raw.is_file():
            facts = json.loads(raw.read_text(encoding="utf-8"))
            data = facts["data"]
            drawn.append(folder / f"{item}.png")
            height = figure.height(data)
            picture(drawn[-1:], facts["title"], facts["settings"], height, figure.draw, data)
    return drawn


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m dpfedls.paper.redraw FOLDER, where FOLDER holds ITEM.json")
    print("\n".join(map(str, redraw(Path(sys.argv[1])))))
