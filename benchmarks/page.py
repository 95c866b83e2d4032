"""Put the table of results/cpu.json into docs/performance.md; make bench ends with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import OURS, RESULTS, ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- from cpu.json by benchmarks/page.py -->", "<!-- end -->"
PEERS = {
    "pfl": "pfl 0.6",
    "flower": "Flower simulation",
    "fedjax": "FedJAX",
    "loop": "plain loop",
}


def table(kept: dict[str, Any]) -> str:
    """Model × peer: how many times our round a peer's takes, and below it where and when."""
    rows = {name: {} for name in kept["workloads"]}
    for line in kept["summary"]:
        rows[line["workload"]][line["system"]] = line
    text = [
        f"| workload | ours | {' | '.join(PEERS.values())} |",
        "|---|---|" + "---|" * len(PEERS),
    ]
    for name, found in rows.items():
        ours = f"{_ms(found[OURS]['round'])} ({found[OURS]['setting']})"
        text.append(f"| {name} | {ours} | {' | '.join(_ratio(found.get(p)) for p in PEERS)} |")
    machine, load = kept["machine"], kept["machine"]["load_before"]
    where = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    text += [
        "",
        "Bold: how many times ours; beside it milliseconds a round, medians of "
        f"{kept['repetitions']} processes. Machine: {where}, commit {machine['commit'][:7]}, load "
        f"before the first run {load:.1f}.",
    ]
    return "\n".join(text)


def _ratio(line: dict[str, Any] | None) -> str:
    return f"**{line['times_ours']:.1f}×** ({_ms(line['round'])})" if line else "–"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"


def main(page: Path = PAGE) -> None:
    """Write the table between its two marks."""
    head, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"{page} has no lines {BEGIN} and {END}; put them where the table goes")
    made = table(json.loads(RESULTS.read_text()))
    page.write_text(f"{head}{BEGIN}\n{made}\n{END}{tail}", "utf-8")
    print(made)


if __name__ == "__main__":
    main()
