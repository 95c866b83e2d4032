"""The table of docs/reliability.md, made anew from what was just run."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

from torture.outcome import HEADER, Outcome, row

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def rewrite(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Put the new lines in; kinds that were not run keep theirs."""
    before, _, rest = path.read_text("utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    lines = {line.split(" | ")[0].strip("| "): line for line in old.splitlines() if "| " in line}
    day = datetime.datetime.now(datetime.UTC).date()
    where = f"{len(os.sched_getaffinity(0))} cores, {day}"
    lines |= {name: f"{row(name, found)} {where} |" for name, found in outcomes.items()}
    header = [
        f"{line}{more}"
        for line, more in zip(HEADER.splitlines(), (" where |", "---|"), strict=True)
    ]
    kept = [line for name, line in lines.items() if name != "kind" and not name.startswith("-")]
    table = "\n".join([*header, *kept])
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")
