"""Reports: one HTML file that stands by itself, with curves, tables and the privacy statement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dpfedls.runs import recipe as recipes
from dpfedls.runs.chart import Series, line_chart
from dpfedls.runs.checkpoint import write_whole
from dpfedls.privacy.wording import text


def page(title: str, *sections: str) -> bytes:
    """A whole HTML page."""
    body = "\n".join(sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    ).encode()


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def charts(accuracy: Series, loss: Series) -> str:
    """Accuracy and loss by round, side by side."""
    return (
        '<div class="charts">'
        + line_chart(accuracy, "Test accuracy (%)", "round", "accuracy (%)")
        + line_chart(loss, "Test loss", "round", "loss")
        + "</div>"
    )


def write_report(folder: Path, recipe: Any, rounds: Sequence[Any], facts: dict[str, Any]) -> None:
    """report.html of one run."""
    judged = [log for log in rounds if log.loss is not None]
    name = f"strength {getattr(recipe.denoiser, 'strength', 0):g}"
    accuracy = {name: [(log.round, 100 * log.accuracy) for log in judged]}
    loss = {name: [(log.round, log.loss) for log in judged]}
    write_whole(
        folder / "report.html",
        page(
            f"{recipe.task}, seed {recipe.seed}",
            charts(accuracy, loss) if judged else "<p>No round was released.</p>",
            from_markdown(text(facts)),
            f"<h2>Recipe</h2><pre>{escape(recipes.encode(recipe))}</pre>",
        ),
    )


def from_markdown(markdown: str) -> str:
    """The little Markdown that privacy statements use, as HTML."""
    out, table = [], []
    for line in [*escape(markdown, quote=False).splitlines(), ""]:
        line = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", line)
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if table:
            out.append(html_table(table[0], table[2:]))
            table = []
        level = len(line) - len(line.lstrip("#"))
        if level:
            out.append(f"<h{level + 1}>{line[level:].strip()}</h{level + 1}>")
        elif line.startswith("- "):
            out.append(f"<li>{line[2:]}</li>")
        elif line:
            out.append(f"<p>{line}</p>")
    return re.sub(r"((?:<li>.*?</li>\n?)+)", r"<ul>\1</ul>", "\n".join(out))


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;margin:0}
main{max-width:1180px;margin:0 auto;padding:2rem 1rem}
h1,h2{line-height:1.2}table{border-collapse:collapse;margin:1rem 0}
th,td{border-bottom:1px solid #ccc;padding:.3rem .9rem;text-align:right}
th:first-child,td:first-child{text-align:left}
pre{background:#f6f6f6;padding:1rem;overflow:auto}li{margin:.2rem 0}
.charts{display:flex;flex-wrap:wrap;gap:1rem}.charts svg{flex:1 1 480px;max-width:570px}
svg text{font-size:12px;fill:#444}svg .title{font-size:14px;font-weight:600}
svg line{stroke:#e4e4e4}svg polyline{fill:none;stroke-width:1.8}
"""
