"""Accuracy at equal (ε, δ): the paper's plan, with its smoothing, and what dpfedls itself chooses.

    python benchmarks/beyond.py mnist-logistic          runs what is missing, then prints the table
    python benchmarks/beyond.py ablation                one part left out at a time, and one alone
    python benchmarks/beyond.py page                    docs/results/beyond.md and its figure

Every run is a line of docs/results/beyond.jsonl: stop it and go on at will.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipe as recipes
from dpfedls.runs.fitting import fitted
from dpfedls.runs.recipe import built
from dpfedls.runs.simulate import simulate
from dpfedls.tasks.task import make_task

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "beyond.jsonl"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
IDENTITY = {"kind": "identity"}

# The paper's plan of each task, as its recipe has it; what it has none for is given that of its
# nearest relative: the CNN on MNIST that of the CNN on SVHN, writers that of MNIST.
PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist-logistic": ("mnist-logistic", {}),
    "mnist-cnn": (
        "svhn-cnn",
        {
            "task": str(HERE / "beyond_tasks.py") + ":mnist_cnn",
            "plan.num_clients": 1000,
            "local.batch_size": 10,
            "local.epochs": 5,
            "local.precision": "float32",
        },
    ),
    "mnist-writers": ("mnist-logistic", {"task": "mnist-writers"}),
    "digits-logistic": ("digits", {}),
    "svhn-36k": (
        "svhn-cnn",
        {"task": str(HERE / "beyond_tasks.py") + ":svhn_36k", "plan.num_clients": 1000},
    ),
}
TITLES = {
    "mnist-logistic": "MNIST, logistic regression: 500 people of 100 images",
    "mnist-writers": "MNIST by writer, logistic regression: 500 real people with 19 to 131 images",
    "digits-logistic": "8×8 digits, logistic regression: 200 people of 7 images",
    "mnist-cnn": "MNIST, a CNN of 110,000 parameters: 1,000 people of 50 images",
    "svhn-36k": "SVHN, the paper's CNN: 1,000 people of 36 images, 4,000 test images",
}
STRENGTHS = (1.0, 3.0)


def paper(task: str, epsilon: float, strength: float) -> recipes.Recipe:
    """The paper's plan at that ε, by the tight accountant."""
    name, changes = PAPER[task]
    promise = {"calibrate.epsilon": epsilon, "calibrate.accountant": "pld"}
    settings = {**promise, "denoiser.strength": strength, **changes}
    return recipes.read(name, [f"{key}={json.dumps(value)}" for key, value in settings.items()])


def automatic(task: str, epsilon: float, **parts: Any) -> recipes.Recipe:
    """What train(epsilon=…) chooses, with these parts given instead."""
    named = paper(task, epsilon, 0.0)
    values = {
        "task": named.task,
        "calibrate": {"epsilon": epsilon},
        "plan": {"num_clients": named.plan.num_clients},
        "evaluate_every": 1_000_000,
        **parts,
    }
    return recipes.decode(values, "beyond", [])


def cells(task: str) -> dict[str, Any]:
    """The columns of the table."""
    return {
        "DP-Fed": lambda e: paper(task, e, 0.0),
        **{f"DP-Fed-LS, σ {s:g}": lambda e, s=s: paper(task, e, s) for s in STRENGTHS},
        "automatic, no smoothing": lambda e: automatic(task, e, denoiser=IDENTITY),
        "automatic": lambda e: automatic(task, e),
    }


def ablation(task: str) -> dict[str, Any]:
    """What each part brings: left out of the whole, and added to the paper's plan."""
    chosen = automatic(task, 1.0)
    plan = recipes.msgspec.to_builtins(chosen.plan)
    adaptive, local = plan["clip_norm"], recipes.msgspec.to_builtins(chosen.local)
    old = recipes.msgspec.to_builtins(paper(task, 1.0, 0.0))
    fixed = {"server_rate": 1.0, "schedule": "constant", "denoiser": IDENTITY}

    def given(plan: dict[str, Any], local: Any, **parts: Any) -> Any:
        plan = {key: value for key, value in plan.items() if key != "noise_multiplier"}
        values = {"task": chosen.task, "plan": plan, "local": local, **parts}
        values |= {"calibrate": {"epsilon": 1.0}, "evaluate_every": 1_000_000}
        return lambda _: recipes.decode(values, "beyond", [])

    whole = {"server_rate": "auto", "schedule": "linear"}
    smoothing = {"denoiser": {"kind": "adaptive-laplacian"}}
    small = {"sampler": old["plan"]["sampler"], "rounds": old["plan"]["rounds"]}
    return {
        "all of it": given(plan, local, **whole, **smoothing),
        "without smoothing": given(plan, local, **whole, denoiser=IDENTITY),
        "without adaptive clipping": given(plan | {"clip_norm": 0.3}, local, **whole, **smoothing),
        "without the rate rule": given(plan, local, **fixed | smoothing | {"schedule": "linear"}),
        "without the planner": given(plan | small, local, **whole, **smoothing),
        "constant rate": given(plan, local, **whole | {"schedule": "constant"}, **smoothing),
        "paper's local training": given(plan, old["local"], **whole, **smoothing),
        "the paper's plan": given(old["plan"], old["local"], **fixed),
        "and the planner": given(old["plan"] | {k: plan[k] for k in small}, old["local"], **fixed),
        "and adaptive clipping": given(
            old["plan"] | {"clip_norm": adaptive}, old["local"], **fixed
        ),
        "and the rate rule": given(
            old["plan"], old["local"], **fixed | {"server_rate": "auto", "schedule": "linear"}
        ),
        "and adaptive smoothing": given(old["plan"], old["local"], **fixed | smoothing),
    }


def run(recipe: recipes.Recipe, seed: int, device: str) -> dict[str, Any]:
    """One run without a folder: what it reached and what it was."""
    recipe = recipes.msgspec.structs.replace(recipe.resolved(), seed=seed, device=device)
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(seed))
    recipe = fitted(recipe, task)
    start = time.perf_counter()
    result = simulate(recipe, task, built(recipe.denoiser), None)
    return {
        "accuracy": result.accuracy,
        "spent": result.epsilon,
        "delta": recipe.plan.delta,
        "rounds": recipe.plan.rounds,
        "cohort": recipe.plan.expected_cohort,
        "noise_multiplier": recipe.plan.noise,
        "seconds": round(time.perf_counter() - start, 1),
    }


def _kept() -> dict[tuple[str, str, float, int], dict[str, Any]]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    rows = [json.loads(line) for line in lines]
    return {(r["task"], r["method"], r["epsilon"], r["seed"]): r for r in rows}


def table(task: str, methods: list[str], epsilons: tuple[float, ...]) -> str:
    """Mean ± deviation over seeds, in Markdown."""
    kept, rows = _kept(), [f"| | {' | '.join(f'ε = {e:g}' for e in epsilons)} |"]
    rows.append("|---|" + "---|" * len(epsilons))
    for method in methods:
        shown = []
        for epsilon in epsilons:
            found = [r["accuracy"] for k, r in kept.items() if k[:3] == (task, method, epsilon)]
            spread = f" ± {100 * statistics.stdev(found):.2f}" if len(found) > 1 else ""
            shown.append(f"{100 * statistics.mean(found):.2f}{spread}" if found else "–")
        rows.append(f"| {method} | {' | '.join(shown)} |")
    return "\n".join(rows)


def figure(task: str = "mnist-logistic") -> Path:
    """Accuracy against ε, with the range over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    looks = {
        "DP-Fed": ("#777777", "o", "DP-Fed, the paper's plan"),
        "DP-Fed-LS, σ 1": ("#b3762b", "s", "DP-Fed-LS, σ = 1"),
        "DP-Fed-LS, σ 3": ("#e0a458", "D", "DP-Fed-LS, σ = 3"),
        "automatic, no smoothing": ("#6a9bc3", "^", "ε alone, no smoothing"),
        "automatic": ("#1f4e79", "v", "ε alone: train(model, clients, epsilon)"),
    }
    drawn, axes = plt.subplots(figsize=(7, 3.4))
    for method, (colour, mark, label) in looks.items():
        rows = [r for k, r in _kept().items() if k[:2] == (task, method)]
        found = {e: [100 * r["accuracy"] for r in rows if r["epsilon"] == e] for e in EPSILONS}
        means = [statistics.mean(found[e]) for e in EPSILONS]
        low = [m - min(found[e]) for e, m in zip(EPSILONS, means, strict=True)]
        high = [max(found[e]) - m for e, m in zip(EPSILONS, means, strict=True)]
        axes.errorbar(
            EPSILONS, means, (low, high), color=colour, marker=mark, label=label,
            markersize=5, linewidth=1.5, capsize=2, elinewidth=0.8,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="ε (user-level, δ = 500^−1.1)", ylabel="test accuracy (%)")
    axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_title(
        "MNIST, logistic regression, 500 people of 100 images, 3 seeds", loc="left", fontsize=10
    )
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")
    drawn.tight_layout()
    path = HERE.parent / "docs" / "images" / "beyond.png"
    drawn.savefig(path, dpi=160)
    return path


def page() -> Path:
    """All tables, with the words of docs/results/beyond.md that stand before the first of them."""
    path = RESULTS.with_suffix(".md")
    text, mark, foreign = path.read_text("utf-8").partition("## Data it was not made on")
    parts = [text.partition("\n## ")[0].rstrip()]
    for task, title in TITLES.items():
        kept = [k for k in _kept() if k[0] == task]
        if kept:
            methods = [m for m in cells(task) if any(k[1] == m for k in kept)]
            seeds = len({k[3] for k in kept})
            parts.append(f"## {title}\n\n{table(task, methods, _epsilons(kept))}\n")
            parts[-1] += f"\n`python benchmarks/beyond.py {task}`; seeds: {seeds}.\n"
    name = "mnist-logistic, ablation"
    parts.append(
        "## What each part brings\n\nMNIST, logistic regression, ε = 1: one part left out of the "
        "whole, then the paper's plan and one part added to it.\n\n"
        + table(name, list(ablation("mnist-logistic")), (1.0,))
        + "\n\n`python benchmarks/beyond.py ablation`"
    )
    parts += [mark + foreign] if mark else []  # benchmarks/foreign.py's, with its own words
    path.write_text("\n\n".join(part.rstrip() for part in parts) + "\n", encoding="utf-8")
    return path


def _epsilons(kept: list[tuple[str, str, float, int]]) -> tuple[float, ...]:
    return tuple(sorted({key[2] for key in kept}))


def main() -> None:
    """Make what is missing of a table; print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", choices=[*PAPER, "ablation", "page"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epsilon", type=float, action="append")
    asked = parser.parse_args()
    if asked.table == "page":
        print(figure(), page())
        return
    single = asked.table == "ablation"
    columns = ablation("mnist-logistic") if single else cells(asked.table)
    epsilons = (1.0,) if single else tuple(asked.epsilon or EPSILONS)
    name = "mnist-logistic, ablation" if single else asked.table
    for seed in range(asked.seeds):
        for epsilon in epsilons:
            for method, make in columns.items():
                if (name, method, epsilon, seed) in _kept():
                    continue
                row = {"task": name, "method": method, "epsilon": epsilon, "seed": seed}
                row |= run(make(epsilon), seed, asked.device)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), file=sys.stderr, flush=True)
    print(table(name, list(columns), epsilons))


if __name__ == "__main__":
    main()
