"""The demo: DP-Fed, DP-Fed-LS and what is chosen for an ε, at one privacy budget, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dpfedls.pages.html import page, table
from dpfedls.privacy.durable import write_whole
from dpfedls.runs import recipes
from dpfedls.runs.curves import charts
from dpfedls.runs.record import RoundRecord
from dpfedls.runs.simulate import start
from dpfedls.runs.watch import describe

# The paper's plan with each strength of smoothing, and everything chosen from ε alone.
METHODS: list[tuple[str, float | None]] = [
    ("DP-Fed", 0.0),
    ("DP-Fed-LS", 1.0),
    ("DP-Fed-LS", 2.0),
    ("DP-Fed-LS", 3.0),
    ("automatic", None),
]


def demo(folder: Path, seeds: int, watch: Callable[[str], None]) -> dict[str, Any]:
    """Train every method with every seed; the table, and a report beside the runs."""
    cells, curves, plan = [], {}, recipes.read("demo").plan
    for method, strength in METHODS:
        name, setting = ("demo", f"denoiser.strength={strength}")
        if strength is None:
            name, setting = ("automatic", f"calibrate.epsilon={plan.epsilon()}")
        label = method if strength is None else f"strength {strength:g}"
        results = []
        for seed in range(seeds):
            recipe = recipes.read(name, [setting, f"seed={seed}"])
            place = folder / f"{label.replace(' ', '-')}-seed-{seed}"
            results.append(start(recipe, place))
            watch(f"{label}, seed {seed}: {describe(results[-1].history[-1])}")
        finals = [result.metrics["accuracy"] for result in results]
        cells.append(
            {
                "method": method,
                "strength": strength,
                "accuracy_mean": mean(finals),
                "accuracy_std": stdev(finals) if seeds > 1 else 0.0,
            }
        )
        curves[label] = [result.history for result in results]
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
            "adaptive" if row["strength"] is None else f"{row['strength']:g}",
            f"{100 * row['accuracy_mean']:.2f}",
            f"{100 * row['accuracy_std']:.2f}",
        ]
        for row in result["table"]
    ]
    return page(
        "DP-Fed, DP-Fed-LS and what is chosen for an ε, at the same privacy budget",
        f"<p>Logistic regression on 5,000 MNIST images of 400 people, simulated. Each model by "
        f"itself costs ε = {result['epsilon']:.3f} at δ = {result['delta']:.2e} (user-level, pld "
        f"accountant); test accuracy over {result['seeds']} seeds.</p>",
        table(["method", "strength σ", "accuracy (%)", "standard deviation"], rows),
        charts(curves),
        "<p>The paper's plan with each strength of smoothing, and below it what "
        "<code>dpfedls.train(model=…, clients=…, epsilon=…)</code> chooses. Smoothing helps where "
        "neighbouring weights are alike, as for images seen pixel by pixel. On other data it can "
        "hurt: compare <code>dpfedls run digits</code> with "
        "<code>dpfedls run digits --set denoiser.strength=0</code>.</p>",
    )
