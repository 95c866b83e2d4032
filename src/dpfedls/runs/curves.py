"""The log of runs as charts and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import TypeAlias

from dpfedls.pages.chart import Line, line_chart
from dpfedls.pages.html import download, paragraph
from dpfedls.runs.record import RoundRecord
from dpfedls.tasks.task import COLUMNS

Log: TypeAlias = Sequence[RoundRecord]

_LARGEST_CSV = 1_500_000  # in characters, so that a page stays below 3 MB
_NOTHING = "<p>No round was evaluated: there were no test samples, or nothing was released.</p>"


def charts(groups: Mapping[str, Sequence[Log]], *more: str) -> str:
    """Every metric, ε and the clip norm by round; runs of one group are one line with a band.

    ``more`` are charts to stand beside them.
    """
    logs = [log for group in groups.values() for log in group]
    names = dict.fromkeys(name for log in logs for line in log for name in line.metrics)
    drawn = [
        _chart(groups, f"Test {name}", _unit(name), lambda line, name=name: _metric(line, name))
        for name in sorted(names, key=lambda name: name != "accuracy")
    ]
    nothing = "" if any(drawn) else _NOTHING
    drawn.append(_chart(groups, "ε spent, rounded up", "", lambda line: line.epsilon))
    if len({line.clip_norm for log in logs for line in log}) > len(groups):
        drawn.append(_chart(groups, "Clip norm", "", lambda line: line.clip_norm))
    if len({line.server_rate for log in logs for line in log}) > len(groups):
        drawn.append(_chart(groups, "Server rate", "", lambda line: line.server_rate))
    seeds = any(len(group) > 1 for group in groups.values())
    band = "<p>Lines are means over seeds; bands reach from the lowest to the highest.</p>"
    return f'{band if seeds else ""}{nothing}<div class="charts">{"".join([*drawn, *more])}</div>'


def shown(name: str, value: float | None) -> str:
    """A metric in a table; nothing is shown for what is not there."""
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4g}"


def csv_link(name: str, logs: Mapping[str, Log]) -> str:
    """A link that saves the logs as CSV, if they are not too much for a page."""
    values = as_csv(logs)
    if len(values) > _LARGEST_CSV:
        return paragraph("Too much for a page: each run's folder has it as rounds.jsonl.")
    return download(name, values)


def as_csv(logs: Mapping[str, Log]) -> str:
    """One row per run and round, with every number that was logged."""
    names = dict.fromkeys(name for log in logs.values() for line in log for name in line.metrics)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", *COLUMNS, *map(plain_text, names)])
    for run, log in logs.items():
        for line in log:
            own = (getattr(line, name) for name in COLUMNS)
            writer.writerow([plain_text(run), *own, *map(line.metrics.get, names)])
    return out.getvalue()


def plain_text(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _unit(name: str) -> str:
    return " (%)" if name == "accuracy" else ""


def _metric(line: RoundRecord, name: str) -> float | None:
    value = line.metrics.get(name)
    return 100 * value if value is not None and name == "accuracy" else value


def _chart(
    groups: Mapping[str, Sequence[Log]],
    title: str,
    unit: str,
    read: Callable[[RoundRecord], float | None],
) -> str:
    lines = {label: _line(logs, read) for label, logs in groups.items()}
    name = title.removeprefix("Test ")
    return line_chart(lines, title + unit, "round", name + unit)


def _line(logs: Sequence[Log], read: Callable[[RoundRecord], float | None]) -> Line:
    """Mean, lowest and highest of the runs that have a value in a round."""
    found: dict[int, list[float]] = {}
    for log in logs:
        for line in log:
            if (value := read(line)) is not None:
                found.setdefault(line.round, []).append(value)
    rounds = sorted(found)
    points = [(t, mean(found[t])) for t in rounds]
    return Line(points, [(min(found[t]), max(found[t])) for t in rounds] if len(logs) > 1 else ())
