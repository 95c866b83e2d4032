"""Reports: one HTML file that stands by itself, with curves, tables and the privacy statement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dpfedls.privacy.durable import write_whole
from dpfedls.privacy.wording import text
from dpfedls.runs import recipe as recipes
from dpfedls.runs.chart import line_chart
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord


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


def charts(runs: Mapping[str, Sequence[RoundRecord]]) -> str:
    """Every metric by round, one line per run and one chart per metric, accuracy first."""
    names = dict.fromkeys(
        name for rounds in runs.values() for line in rounds for name in line.metrics
    )
    drawn = [_chart(name, runs) for name in sorted(names, key=lambda name: name != "accuracy")]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else _NOTHING


def _chart(name: str, runs: Mapping[str, Sequence[RoundRecord]]) -> str:
    unit, scale = (" (%)", 100) if name == "accuracy" else ("", 1)
    series = {
        label: [(r.round, scale * v) for r in rounds if (v := r.metrics.get(name)) is not None]
        for label, rounds in runs.items()
    }
    series = {label: points for label, points in series.items() if points}
    return line_chart(series, f"Test {name}{unit}", "round", f"{name}{unit}")


_NOTHING = "<p>No round was evaluated: there were no test samples, or nothing was released.</p>"


def shown(name: str, value: float | None) -> str:
    """A metric in a table; nothing is shown for what is not there."""
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"


def write_report(
    folder: Path, recipe: Recipe, rounds: Sequence[RoundRecord], facts: dict[str, Any]
) -> None:
    """report.html of one run."""
    code = recipe.own_code
    own = f"<p>Own code: {escape(', '.join(code))}. It is not part of dpfedls.</p>" if code else ""
    write_whole(
        folder / "report.html",
        page(
            f"{recipe.task}, {recipe.method}, seed {recipe.seed}",
            charts({recipe.method: rounds}),
            from_markdown(text(facts)),
            own,
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
