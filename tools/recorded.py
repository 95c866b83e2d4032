"""Write the planner's recorded experiments, src/dpfedls/pages/recorded.json, from docs/results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
METHODS = {
    "automatic": "automatic",
    "DP-Fed": "plain",
}  # as beyond.jsonl and as the page calls them


def recorded() -> list[dict[str, object]]:
    """One row a task and ε, accuracy in per cent: of what ε alone leads to, and of DP-Fed."""
    from beyond import TITLES

    lines = (ROOT / "docs" / "results" / "beyond.jsonl").read_text("utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    rows = []
    for task, title in TITLES.items():
        own = [run for run in runs if run["task"] == task]
        for epsilon in sorted({run["epsilon"] for run in own}):
            here = [run for run in own if run["epsilon"] == epsilon]
            if not {run["method"] for run in here} >= METHODS.keys():
                continue
            row = {"what": title, "people": round(here[0]["delta"] ** (-1 / 1.1))}  # δ = N^−1.1
            row["epsilon"] = epsilon
            for method, name in METHODS.items():
                found = [100 * run["accuracy"] for run in here if run["method"] == method]
                spread = round(stdev(found), 2) if len(found) > 1 else None
                row[name] = [round(mean(found), 2), spread]
            rows.append(row)
    return rows


if __name__ == "__main__":
    path = ROOT / "src" / "dpfedls" / "pages" / "recorded.json"
    path.write_text(
        "[\n" + ",\n".join([json.dumps(row, ensure_ascii=False) for row in recorded()]) + "\n]\n",
        "utf-8",
    )
