"""The result pages: ``python -m dpfedls.paper.results OUT docs/results``.

OUT is the folder of ``dpfedls reproduce``. One page a task; raw data and figures are copied beside
it. An item that OUT does not hold keeps the section it has.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dpfedls.paper.items import ITEMS
from dpfedls.privacy.durable import write_whole

PAGES = {
    "mnist": (
        "MNIST: logistic regression (Section 6.1)",
        (
            *("table2", "realised-cohort", "choices-mnist", "mnist-curves"),
            *("server-rates-mnist", "server-rates-demo", "fourier-mnist"),
        ),
    ),
    "cnn": (
        "CNN (Sections 6.2 and 6.4)",
        (
            *("table3", "table4", "table5", "server-rates-cnn", "svhn-cells"),
            *("svhn-curves", "stability", "attack", "attack-svhn5k", "fourier"),
        ),
    ),
    "shakespeare": (
        "Shakespeare: LSTM (Section 6.3)",
        ("table6", "shakespeare-curves", "server-rates-lstm"),
    ),
    "theory-and-privacy": (
        "Theory and privacy",
        ("table1", "accountants", "lemmas", "sine", "plane"),
    ),
}


def assemble(out: Path, docs: Path) -> list[Path]:
    """Write every page; an item that was never made is named with the command that makes it."""
    docs.mkdir(parents=True, exist_ok=True)
    pages = []
    for page, (title, items) in PAGES.items():
        pages.append(docs / f"{page}.md")
        kept = pages[-1].read_text(encoding="utf-8") if pages[-1].is_file() else ""
        sections = [f"# {title}", *(_section(item, out, kept) for item in items)]
        write_whole(pages[-1], ("\n\n".join(sections) + "\n").encode())
        for path in (out / f"{item}.{kind}" for item in items for kind in ("json", "png")):
            if path.is_file():
                shutil.copyfile(path, docs / path.name)
    return pages


def _section(item: str, out: Path, kept: str) -> str:
    text, raw = out / f"{item}.md", f"Raw data: [{item}.json]({item}.json)."
    if text.is_file():
        return f"{text.read_text(encoding='utf-8').strip()} {raw}"
    for section in kept.split("\n## ")[1:]:
        if raw in section:
            return f"## {section.strip()}"
    title = ITEMS[item][1]
    return f"## {title[0].upper()}{title[1:]}\n\nNot made yet: `dpfedls reproduce {item}`."


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m dpfedls.paper.results OUT DOCS, where OUT is a folder")
    print("\n".join(map(str, assemble(Path(sys.argv[1]), Path(sys.argv[2])))))
