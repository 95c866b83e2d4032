"""The parts of a page: every text is escaped here, so a script in a run's name stays text."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources


def page(title: str, *sections: str, style: str = "", script: str = "") -> bytes:
    """A whole HTML page in one file, with the style of all pages and perhaps more."""
    css = asset("page.css") + style
    body = "\n".join(part for part in sections if part)
    run = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<style>\n{css}</style></head>\n"
        f'<body><a class="skip" href="#main">Skip to the content</a><main id="main">'
        f"<h1>{escape(title)}</h1>\n{body}\n</main>{run}</body></html>\n"
    ).encode()


def asset(name: str) -> str:
    """A file beside this one that pages are made of."""
    return resources.files("dpfedls.pages").joinpath(name).read_text(encoding="utf-8")


def section(title: str, *parts: str) -> str:
    """A part of a page under its own heading; none where there is nothing in it."""
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def cards(values: Mapping[str, str]) -> str:
    """The few numbers that matter most, large."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in values.items()
    )
    return f'<dl class="cards">{items}</dl>'


def facts(values: Mapping[str, str]) -> str:
    """Names and values, one below the other."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in values.items()
    )
    return _scrolling("Facts", f'<table class="facts"><tbody>{rows}</tbody></table>')


def table(header: Sequence[str], rows: Sequence[Sequence[str]], label: str = "Table") -> str:
    """A table with a header; a wide one scrolls by itself, by keyboard too."""
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    kinds = [' class="number"' if all(map(_NUMBER.match, column)) else "" for column in columns]
    named, cells = list(zip(kinds, header, strict=True)), [zip(kinds, r, strict=True) for r in rows]
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for kind, cell in named)
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in row) + "</tr>"
        for row in cells
    )
    return _scrolling(label, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


_NUMBER = re.compile(r"[-–−∞]?[\d.,]*(e[-+]?\d+)?( %| of \d+)?$")


def code(text: str, label: str) -> str:
    """Text as it stands, for a terminal or a file."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(text)}</pre>'


def details(summary: str, body: str) -> str:
    """Something to open; ``body`` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def download(name: str, content: str) -> str:
    """A link that saves a CSV file which lies inside the page."""
    data = base64.b64encode(content.encode()).decode()
    href = f"data:text/csv;charset=utf-8;base64,{data}"
    return f'<p><a download="{escape(name)}" href="{href}">Download {escape(name)}</a></p>'


def from_markdown(markdown: str, lower: int) -> str:
    """The little Markdown that privacy statements use, as HTML; its headings so much lower."""
    out, rows = [], []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            out.append(table(rows[0], rows[2:]))
            rows = []
        level = len(line) - len(line.lstrip("#"))
        words = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(line[level:].strip(), quote=False))
        if level:
            out.append(f"<h{level + lower}>{words}</h{level + lower}>")
        elif line.startswith("- "):
            out.append(f"<li>{words[2:]}</li>")
        elif line:
            out.append(f"<p>{words}</p>")
    return re.sub(r"((?:<li>.*?</li>\n?)+)", r"<ul>\1</ul>", "\n".join(out))


def _scrolling(label: str, inner: str) -> str:
    name = escape(label)
    return f'<div class="wide" tabindex="0" role="region" aria-label="{name}">{inner}</div>'
