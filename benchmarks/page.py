"""Put the table of results/cpu.json into docs/performance.md; make bench ends with it."""

from __future__ import annotations

import json
import statistics
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
    there = {line["system"] for line in kept["summary"]}
    peers = {peer: title for peer, title in PEERS.items() if peer in there}
    text = [
        f"| workload | ours | {' | '.join(peers.values())} |",
        "|---|---|" + "---|" * len(peers),
    ]
    for name, found in rows.items():
        ours = f"{_ms(found[OURS]['round'])}{_spread(found[OURS], kept)} ({found[OURS]['setting']})"
        ratios = [_ratio(found.get(peer), kept) for peer in peers]
        text.append(f"| {name} | {ours} | {' | '.join(ratios)} |")
    machine, load = kept["machine"], kept["machine"]["load_before"]
    where = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    text += [
        "",
        "Bold: how many times ours; beside it milliseconds a round, medians of "
        f"{kept['repetitions']} processes and, small, the least and the most of them. Machine: "
        f"{where}, commit {machine['commit'][:7]}, load before the first run {load:.1f}.",
    ]
    return "\n".join(text)


def _ratio(line: dict[str, Any] | None, kept: dict[str, Any]) -> str:
    if line is None:
        return "–"
    return f"**{line['times_ours']:.1f}×** ({_ms(line['round'])}{_spread(line, kept)})"


def _spread(line: dict[str, Any], kept: dict[str, Any]) -> str:
    """The medians of the fastest and the slowest process of this setting."""
    same = ("workload", "system", "setting")
    runs = [run for run in kept["runs"] if all(run[key] == line[key] for key in same)]
    medians = [1000 * statistics.median(run["rounds"]) for run in runs]
    if len(medians) < 2:
        return ""
    digits = 1 if min(medians) < 10 else 0
    return f" <small>{min(medians):.{digits}f}–{max(medians):.{digits}f}</small>"


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
