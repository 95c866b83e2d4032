"""The same work for us and for the peers, in one interleaved run. make bench.

Every repetition is a fresh process of each system in turn, so that whatever else the machine does
falls on all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads import WORKLOADS

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "cpu.json"
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Setting:
    """One way to start a system; ``launcher`` stands before its module, ``options`` after it."""

    name: str
    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """A module of runners/ and the settings it may choose the best of."""

    module: str
    settings: tuple[Setting, ...]
    environment: str | None = None  # of .bench/; None is the environment that runs this script
    leaves_out: tuple[str, ...] = ()  # workloads: all of it takes less than 15 minutes


_ONE_THREAD = Setting("1 thread", options=("--threads", "1"))
_PROCESSES = ("-m", "torch.distributed.run", "--nproc-per-node", str(CORES))
OURS = "dpfedls"
SYSTEMS = {
    OURS: System(
        "runners.ours",
        (
            Setting("one process"),
            Setting(f"{CORES} processes", launcher=_PROCESSES),
        ),
    ),
    "loop": System(
        "runners.loop",
        (_ONE_THREAD, Setting(f"{CORES} threads", options=("--threads", str(CORES)))),
        leaves_out=("logistic-20", "logistic-1000"),
    ),
    "pfl": System(
        "runners.pfl_runner",
        (Setting("1 process"), Setting(f"{CORES} processes", launcher=_PROCESSES)),
        environment="pfl",
    ),
    "flower": System(
        "runners.flower_runner",
        (Setting(f"{CORES} actors", options=("--cpus", "1")),),
        environment="flower",
        leaves_out=("logistic-20", "logistic-1000", "gelu-mlp", "resnet-8", "transformer", "gru"),
    ),
    "fedjax": System(
        "runners.fedjax_runner",
        (Setting("as it comes"),),
        environment="fedjax",
        leaves_out=(
            *("logistic-20", "logistic-1000", "gelu-mlp"),
            *("lstm", "resnet-8", "transformer", "gru"),
        ),
    ),
}


def main() -> None:
    """Run what is asked for, print the table, keep the figures."""
    given = _arguments()
    rounds = 2 if given.quick else None
    repetitions = 1 if given.quick else given.repetitions
    chosen = {name: SYSTEMS[name] for name in given.systems}
    pythons = {name: _python(system.environment) for name, system in chosen.items()}
    about = machine()
    summary, runs = [], []
    for name in given.workloads:
        systems = {key: s for key, s in chosen.items() if name not in s.leaves_out}
        measured = _interleave(name, systems, pythons, repetitions, rounds)
        lines = _summarise(name, measured)
        _show(lines)
        summary += lines
        runs += measured
    if given.quick or given.workloads != [*WORKLOADS] or given.systems != [*SYSTEMS]:
        print("not kept: only a whole run is a result")
        return
    kept = {
        "machine": about,
        "repetitions": repetitions,
        "workloads": {name: asdict(WORKLOADS[name]) for name in given.workloads},
        "summary": summary,
        "runs": runs,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"kept in {RESULTS.relative_to(ROOT)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, metavar="NAME")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, metavar="NAME", default=[*SYSTEMS])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repetition of two rounds")
    given = parser.parse_args()
    given.workloads = given.workloads or (["logistic-20"] if given.quick else [*WORKLOADS])
    return given


def _python(environment: str | None) -> Path:
    """The interpreter of a peer's own environment, made where it is not there yet."""
    if environment is None:
        return Path(sys.executable)
    folder = ROOT / ".bench" / environment
    requirements = HERE / "runners" / f"requirements-{environment}.txt"
    mark, python = folder / "installed.txt", folder / "bin" / "python"
    if not mark.is_file() or mark.read_text() != requirements.read_text():
        print(f"making {folder.relative_to(ROOT)} (minutes, once)", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
        subprocess.run(install, check=True)
        mark.write_text(requirements.read_text())
    return python


def machine() -> dict[str, Any]:
    """What a figure is worth nothing without."""
    import torch

    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": CORES,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.strip() + ("+changes" if changed else ""),
        "load_before": os.getloadavg()[0],
    }


def _interleave(
    workload: str,
    systems: dict[str, System],
    pythons: dict[str, Path],
    repetitions: int,
    rounds: int | None,
) -> list[dict[str, Any]]:
    """All runs of a workload. The first repetition tries every setting; the fastest goes on."""
    settings = {name: system.settings for name, system in systems.items()}
    runs = []
    for repetition in range(repetitions):
        for name, system in systems.items():
            tried = []
            for setting in settings[name]:
                run = _run(pythons[name], system.module, setting, workload, rounds)
                head = {"workload": workload, "system": name, "setting": setting.name}
                tried.append(head | {"repetition": repetition} | run)
                print(
                    f"{workload:14} {repetition + 1} {name}, {setting.name}: "
                    f"{_round(run):.4f} s a round",
                    flush=True,
                )
            runs += tried
            best = min(tried, key=_round)["setting"]
            settings[name] = tuple(s for s in settings[name] if s.name == best)
    return runs


def _round(run: dict[str, Any]) -> float:
    return statistics.median(run["rounds"])


def _run(
    python: Path, module: str, setting: Setting, workload: str, rounds: int | None
) -> dict[str, Any]:
    """One fresh process: seconds to the end of the first round, of each later one, peak memory."""
    command = [python, *setting.launcher, "-m", module, workload, *setting.options]
    if rounds:
        command += ["--rounds", str(rounds)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=1800)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not said or "peak_mib" not in said[-1]:
        raise SystemExit(f"{module} failed on {workload} ({setting.name}):\n{done.stderr[-4000:]}")
    return {
        "first_round": said[0]["first_round"],
        "rounds": [line["round"] for line in said[1:-1]],
        "peak_mib": said[-1]["peak_mib"],
    }


def _summarise(workload: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a system: medians over repetitions of its best setting, each of its rounds' median.

    ``times_ours`` is its round over ours.
    """
    lines = []
    for name in dict.fromkeys(run["system"] for run in runs):
        tried = [run for run in runs if run["system"] == name and run["repetition"] == 0]
        setting = min(tried, key=_round)["setting"]
        kept = [run for run in runs if (run["system"], run["setting"]) == (name, setting)]
        line = {
            "workload": workload,
            "system": name,
            "setting": setting,
            "round": statistics.median(map(_round, kept)),
            "first_round": statistics.median(run["first_round"] for run in kept),
            "peak_mib": statistics.median(run["peak_mib"] for run in kept),
        }
        lines.append(line)
    ours = [line["round"] for line in lines if line["system"] == OURS]
    return [line | {"times_ours": line["round"] / ours[0]} if ours else line for line in lines]


def _show(lines: list[dict[str, Any]]) -> None:
    print(f"\n{lines[0]['workload']}")
    print(f"{'':26}{'s a round':>10}{'rounds/s':>10}{'× ours':>8}{'first s':>9}{'MiB':>7}")
    for line in lines:
        ratio = f"{line['times_ours']:.1f}" if "times_ours" in line else "–"
        print(
            f"{line['system'] + ', ' + line['setting']:26}{line['round']:10.4f}"
            f"{1 / line['round']:10.1f}{ratio:>8}{line['first_round']:9.1f}{line['peak_mib']:7.0f}"
        )
    print(flush=True)


if __name__ == "__main__":
    main()
