"""What a round costs on a real federation on this machine: wall clock and CPU of all its processes.

python benchmarks/federation.py [RECIPE] [--nodes 4] [--rounds 6]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

from bench import machine

from dpfedls.flower.app import deployed
from dpfedls.flower.local import deploy_local
from dpfedls.flower.orphans import marked
from dpfedls.flower.promise import on_nodes
from dpfedls.runs import recipes
from dpfedls.runs.record import RoundRecord


def main() -> None:
    """Seconds until the first round is released, and of each round after it."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("recipe", nargs="?", default="demo")
    words.add_argument("--nodes", type=int, default=4)
    words.add_argument("--rounds", type=int, default=6)
    asked = words.parse_args()
    recipe = deployed(recipes.read(asked.recipe, [f"plan.rounds={asked.rounds}"]), [])
    times = [time.monotonic()]
    spent = [0.0]

    def watch(_: RoundRecord) -> None:
        times.append(time.monotonic())
        spent.append(cpu_seconds())

    with tempfile.TemporaryDirectory() as place:
        deploy_local(on_nodes(recipe), Path(place) / "run", asked.nodes, watch)
    rounds = [after - before for before, after in itertools.pairwise(times[1:])]
    print(machine())
    print(f"first round released after {times[1] - times[0]:.1f} s, {spent[1]:.1f} s of CPU")
    print(f"seconds a round: {' '.join(f'{found:.1f}' for found in rounds)}")
    print(f"median {statistics.median(rounds):.2f} s", end=", ")
    print(f"CPU {(spent[-1] - spent[1]) / len(rounds):.2f} s a round")
    print(f"in all {time.monotonic() - times[0]:.1f} s")


def cpu_seconds() -> float:
    """User and system time of this federation's processes, and of those that they waited for."""
    ticks = 0
    for pid, mark in marked("").items():
        if mark.split("-")[1] == str(os.getpid()):
            status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            ticks += sum(map(int, status.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
