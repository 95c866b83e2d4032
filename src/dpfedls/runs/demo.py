"""The demo: DP-Fed against DP-Fed-LS at one privacy budget, on data that travels with a package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dpfedls.pages.html import page, table
from dpfedls.privacy.durable import write_whole
from dpfedls.runs import recipe as recipes
from dpfedls.runs.curves import charts
from dpfedls.runs.record import RoundRecord
from dpfedls.runs.simulate import start
from dpfedls.runs.watch import describe

STRENGTHS = (0.0, 1.0, 2.0, 3.0)


def demo(folder: Path, seeds: int, watch: Callable[[str], None]) -> dict[str, Any]:
    """Train every strength with every seed; the table, and a report beside the runs."""
    cells, curves, plan = [], {}, recipes.read("demo").plan
    for strength in STRENGTHS:
        results = []
        for seed in range(seeds):
            recipe = recipes.read("demo", [f"denoiser.strength={strength}", f"seed={seed}"])
            results.append(start(recipe, folder / f"strength-{strength:g}-seed-{seed}"))
            watch(f"strength {strength:g}, seed {seed}: {describe(results[-1].history[-1])}")
        finals = [result.metrics["accuracy"] for result in results]
        cells.append(
            {
                "method": "DP-Fed" if strength == 0 else "DP-Fed-LS",
                "strength": strength,
                "accuracy_mean": mean(finals),
                "accuracy_std": stdev(finals) if seeds > 1 else 0.0,
            }
        )
        curves[f"strength {strength:g}"] = [result.history for result in results]
    report = folder / "report.html"
    result = {
        "table": cells,
        "epsilon": plan.epsilon(),
        "delta": plan.delta,
        "seeds": seeds,
        "report": str(report),
    }
    write_whole(report, _report(result, curves))
    return result


def _report(result: dict[str, Any], curves: dict[str, list[list[RoundRecord]]]) -> bytes:
    rows = [
        [
            row["method"],
            f"{row['strength']:g}",
            f"{100 * row['accuracy_mean']:.2f}",
            f"{100 * row['accuracy_std']:.2f}",
        ]
        for row in result["table"]
    ]
    return page(
        "DP-Fed and DP-Fed-LS at the same privacy budget",
        f"<p>Logistic regression on 5,000 MNIST images of 400 people, simulated. Each model by "
        f"itself costs ε = {result['epsilon']:.3f} at δ = {result['delta']:.2e} (user-level, pld "
        f"accountant); test accuracy over {result['seeds']} seeds.</p>",
        table(["method", "strength σ", "accuracy (%)", "standard deviation"], rows),
        charts(curves),
        "<p>Smoothing helps where neighbouring weights are alike, as for images seen pixel by "
        "pixel. On other data it can hurt: compare <code>dpfedls run digits</code> with "
        "<code>dpfedls run digits --set denoiser.strength=0</code>.</p>",
    )
