"""Table 1, the rates: every row as a formula, with its value at an example."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from dpfedls.paper import grids
from dpfedls.paper.item import Item, Options
from dpfedls.paper.writing import number, table, write_item
from dpfedls.theory import Problem, Target, table_1

PARTS = {"utility": "Utility: the gap at (ε, δ)", "communication": "Rounds to a gap ϵ"}


def make(options: Options) -> Item:
    """Item ``table1``; nothing is trained."""
    began = time.perf_counter()
    problem, target = _example()
    rows = example()
    at = ", ".join(f"{k} {v:g}" for k, v in (asdict(problem) | target._asdict()).items())
    return write_item(
        "table1",
        options,
        title="Table 1: rates of utility and communication",
        sections=[
            "Formulas as corrected in docs/theory.md. Constants are left out, as in the paper: the "
            "values show how rates compare and promise nothing. † full participation, ‡ (of a "
            "cell) up to logarithms, * like clients and many local steps. N counts data points in "
            "the centralised rows (DP-SGD, DP-SVRG, DP-SGD-LS) and clients in the others, so rows "
            "of the two kinds protect different things at the same ε; DP-SRM protects data points "
            "of N clients with ñ each.",
            *(_part(name, [row for row in rows if row["part"] == name]) for name in PARTS),
            f"Values at: {at}.",
        ],
        cells=rows,
        began=began,
    )


def example() -> list[dict[str, Any]]:
    """Every row with its formulas, and their values at grids/table1.toml."""
    return table_1(*_example())


def _example() -> tuple[Problem, Target]:
    chosen = grids.read("table1", dict[str, dict[str, Any]])
    return Problem(**chosen["problem"]), Target(**chosen["target"])


def _part(name: str, rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            f"{row['method']} ({row['citation']})",
            *(row["strongly_convex_formula"] or "–", number(row["strongly_convex"])),
            *(row["non_convex_formula"] or "–", number(row["non_convex"])),
        ]
        for row in rows
    ]
    header = ["method", "strongly convex", "value", "non-convex", "value"]
    return f"**{PARTS[name]}**\n\n{table(header, lines)}"
