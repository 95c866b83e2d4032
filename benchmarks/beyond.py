"""Accuracy at equal (ε, δ): the paper's plan, with its smoothing, and what dpfedls itself chooses.

    python benchmarks/beyond.py mnist-logistic          runs what is missing, then prints the table
    python benchmarks/beyond.py ablation                one part left out at a time, and one alone
    python benchmarks/beyond.py plans                   other cohorts and rounds, for a CNN
    python benchmarks/beyond.py records                 one image a person, beside published DP-SGD
    python benchmarks/beyond.py trials                  other plans by hand for that
    python benchmarks/beyond.py steps                   local training for that, a linear model
    python benchmarks/beyond.py users                   3,383 people, as in a tutorial of TFF
    python benchmarks/beyond.py few --seeds 20          few people and a small ε, many seeds
    python benchmarks/beyond.py page                    docs/results/beyond.md and its figure

Every run is a line of docs/results/beyond.jsonl: stop it and go on at will.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from beyond_rows import (
    BY_HAND,
    HERE,
    PAPER,
    ablation,
    cells,
    few,
    paper,
    plans,
    records,
    steps,
    trials,
    users,
)
from msgspec.structs import replace

from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs.fitting import ready
from dpfedls.runs.recipe import built
from dpfedls.runs.simulate import simulate
from dpfedls.tasks.task import make_task

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "beyond.jsonl"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
TITLES = {
    "mnist-logistic": "MNIST, logistic regression: 500 people of 100 images",
    "mnist-writers": "MNIST by writer, logistic regression: 500 real people with 19 to 131 images",
    "mnist-many": "MNIST, logistic regression: 5,000 people of 10 images",
    "digits-logistic": "8×8 digits, logistic regression: 200 people of 7 images",
    "mnist-cnn": "MNIST, a CNN of 110,000 parameters: 1,000 people of 50 images",
    "chitchat": "Chat messages by sender, next character, an MLP: 1,100 real people",
    "svhn-36k": "SVHN without extra, the paper's CNN: 1,000 people of 36 images, 4,000 test images",
}
# Accuracy at ε = 1, 2, 3, 4 and δ = 1e-5 for one image a person: Table 2 of arXiv:2311.14056.
PUBLISHED = {
    "DP-SGD, published": (95.1, 96.1, 96.8, 97.3),
    "DP-SGD with tempered sigmoids, published": (97.1, 97.9, 98.2, 98.5),
}


def run(recipe: recipes.Recipe, seed: int, device: str, precision: Any) -> dict[str, Any]:
    """One run without a folder: what it reached and what it was."""
    recipe = replace(recipe.resolved(), seed=seed, device=device)
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(seed))
    recipe = ready(recipe, task)
    recipe = replace(recipe, local=replace(recipe.local, precision=precision))
    start = time.perf_counter()
    result = simulate(recipe, task, built(recipe.denoiser), None)
    return {
        "accuracy": result.accuracy,
        "spent": result.epsilon,
        "delta": recipe.plan.delta,
        "rounds": recipe.plan.rounds,
        "cohort": recipe.plan.expected_cohort,
        "noise_multiplier": recipe.plan.noise,
        "precision": precision,
        "machine": machine(device),
        "seconds": round(time.perf_counter() - start, 1),
    }


def machine(device: str) -> str:
    """What trained, in a word."""
    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


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


def headline() -> str:
    """Each task in two lines: the best that the paper's plan reaches, and ε alone."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for (task, method, epsilon, _), row in _kept().items():
        found.setdefault((task, method, epsilon), []).append(100 * row["accuracy"])
    epsilons = _epsilons([(*key, 0) for key in found if key[0] in TITLES])
    rows = [f"| | | {' | '.join(f'ε = {e:g}' for e in epsilons)} |"]
    rows.append("|---|---|" + "---|" * len(epsilons))
    for task, title in TITLES.items():
        plan, alone = [m for m in cells(task) if m.startswith("DP-Fed")], ["automatic"]
        for label, methods in (("the paper's plan, its best σ", plan), ("**ε alone**", alone)):
            means = [
                [statistics.mean(found[key]) for m in methods if (key := (task, m, e)) in found]
                for e in epsilons
            ]
            shown = [f"{max(mean):.1f}" if mean else "–" for mean in means]
            if methods == alone:
                shown = [value if value == "–" else f"**{value}**" for value in shown]
            rows.append(f"| {title if methods == plan else ''} | {label} | {' | '.join(shown)} |")
    return "\n".join(rows)


def figure() -> Path:
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
    panels = {
        "mnist-logistic": ("MNIST, logistic regression, 500 people of 100", (76, 93)),
        "mnist-cnn": ("MNIST, CNN, 1,000 people of 50", (70, 100)),
    }
    drawn, places = plt.subplots(1, 2, figsize=(9, 3.9))
    for axes, (task, (title, shown)) in zip(places, panels.items(), strict=True):
        for method, (colour, mark, label) in looks.items():
            rows = [r for k, r in _kept().items() if k[:2] == (task, method)]
            found = {e: [100 * r["accuracy"] for r in rows if r["epsilon"] == e] for e in EPSILONS}
            found = {e: values for e, values in found.items() if values}
            means = [statistics.mean(values) for values in found.values()]
            low = [m - min(v) for v, m in zip(found.values(), means, strict=True)]
            high = [max(v) - m for v, m in zip(found.values(), means, strict=True)]
            axes.errorbar(
                list(found), means, (low, high), color=colour, marker=mark, label=label,
                markersize=5, linewidth=1.5, capsize=2, elinewidth=0.8,
            )  # fmt: skip
        axes.set(xscale="log", xlabel="ε (user-level, δ = N^−1.1)", ylim=shown)
        axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6", linewidth=0.6)
        axes.set_title(title, loc="left", fontsize=10)
    places[0].set_ylabel("test accuracy (%)")
    handles = places[0].get_legend_handles_labels()
    drawn.legend(*handles, frameon=False, fontsize=8.5, loc="lower center", ncols=3)
    drawn.tight_layout(rect=(0, 0.13, 1, 1))
    path = HERE.parent / "docs" / "images" / "beyond.png"
    drawn.savefig(path, dpi=160)
    return path


def page() -> Path:
    """All tables, with the words of docs/results/beyond.md that stand before the first of them."""
    path = RESULTS.with_suffix(".md")
    text, mark, foreign = path.read_text("utf-8").partition("## Data it was not made on")
    parts = [text.partition("\n## ")[0].rstrip()]
    parts.append(
        "## In one table\n\nTest accuracy in per cent, means over seeds; the best σ is chosen by "
        f"these figures, which favours the paper's plan.\n\n{headline()}"
    )
    for task, title in TITLES.items():
        kept = [k for k in _kept() if k[0] == task]
        if kept:
            methods = [m for m in cells(task) if any(k[1] == m for k in kept)]
            parts.append(f"## {title}\n\n{table(task, methods, _epsilons(kept))}\n")
            parts[-1] += f"\n{_made(task)}\n"
    name = "mnist-cnn, plans"
    parts.append(
        "## Other cohorts and rounds than those chosen\n\nThe CNN on MNIST, with smoothing.\n\n"
        + table(name, list(plans()), (2.0, 4.0, 8.0))
        + "\n\n`python benchmarks/beyond.py plans --device cuda --epsilon …`"
    )
    parts += _literature()
    name = "digits-logistic, few"
    parts.append(
        "## Few people, many seeds\n\n8×8 digits, logistic regression, 200 people of 7 images, "
        "20 seeds. The linear fall of the server rate is what ε alone chose before.\n\n"
        + table(name, list(few()), (0.5, 1.0))
        + "\n\n`python benchmarks/beyond.py few --seeds 20`"
    )
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


def _literature() -> list[str]:
    """One image a person, and as many people as a tutorial has; δ = 1e-5 as published."""
    epsilons = (1.0, 2.0, 3.0, 4.0)
    published = [
        f"| {name} | {' | '.join(f'{value:g}' for value in values)} |"
        for name, values in PUBLISHED.items()
    ]
    ours = table("mnist-cnn, records", list(records()), epsilons)
    tried = [k[1] for k in _kept() if k[0] == "mnist-cnn, trials"]
    return [
        "## One image a person, beside published DP-SGD\n\nMNIST, 60,000 people with one image "
        "each, δ = 1e-5: what differential privacy protects is one image. The CNN of 110,000 "
        "parameters with ReLU and with tanh. *ε alone* is `train(epsilon=…, delta=1e-5)`; *by "
        f"hand* is a plan of DP-SGD's kind: {BY_HAND}. Published: Table 2 of "
        "arXiv:2311.14056, with another CNN, and noise tuned for each ε.\n\n"
        + "\n".join([ours, *published])
        + f"\n\n`python benchmarks/beyond.py records --device cuda`; {_on('mnist-cnn, records')}",
        "Other plans by hand, with tanh:\n\n"
        + table("mnist-cnn, trials", [m for m in trials() if m in tried], (2.0,))
        + f"\n\n`python benchmarks/beyond.py trials --device cuda`; {_on('mnist-cnn, trials')}",
        "With a linear model. The last line is ε alone: 1,000 people a round, one pass of 0.025, "
        "quantile 0.9, a server rate of up to 60. In the others it is at most 2, and a round had "
        "500 people; the first was chosen before.\n\n"
        + table("mnist-logistic, steps", list(steps()), (1.0,))
        + f"\n\n`python benchmarks/beyond.py steps --seeds 1`; {_on('mnist-logistic, steps')}",
        *_tutorial(),
    ]


def _tutorial() -> list[str]:
    if not any(key[0] == "mnist-cnn, users" for key in _kept()):
        return []
    return [
        "## As many people as in TFF's tutorial\n\nTensorFlow Federated's tutorial on "
        "differential privacy trains on EMNIST's digits by 3,383 writers at ε = 2, δ = 1e-5. "
        "EMNIST is not here: these are MNIST's 60,000 images dealt out at random to 3,383 people, "
        "17 or 18 each, which is easier than by writer, and the CNN of 110,000 parameters.\n\n"
        + table("mnist-cnn, users", list(users()), (2.0,))
        + f"\n\n`python benchmarks/beyond.py users --device cuda`; {_on('mnist-cnn, users')}",
    ]


def _on(task: str) -> str:
    rows = [row for key, row in _kept().items() if key[0] == task]
    on = sorted({f"{r.get('machine', 'cpu')}, {r.get('precision', 'float32')}" for r in rows})
    return f"seeds: {len({row['seed'] for row in rows})}; on {'; '.join(on)}."


def _made(task: str) -> str:
    """How a table was made, and on what."""
    rows = [row for key, row in _kept().items() if key[0] == task]
    seeds, on = len({row["seed"] for row in rows}), _on(task)
    command = f"python benchmarks/beyond.py {task}" + " --device cuda" * ("on cpu" not in on)
    given = {row["epsilon"] for row in rows}
    command += f" --seeds {seeds}" * (seeds != 3)
    command += "".join(f" --epsilon {e:g}" for e in sorted(given) if given != set(EPSILONS))
    return f"`{command}`; {on}"


def _epsilons(kept: list[tuple[str, str, float, int]]) -> tuple[float, ...]:
    return tuple(sorted({key[2] for key in kept}))


def main() -> None:
    """Make what is missing of a table; print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    others = ["ablation", "plans", "records", "trials", "steps", "users", "few"]
    parser.add_argument("table", choices=[*PAPER, *others, "page"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epsilon", type=float, action="append")
    asked = parser.parse_args()
    if asked.table == "page":
        print(figure(), page())
        return
    task, columns, usual = {
        "ablation": ("mnist-logistic", partial(ablation, "mnist-logistic"), (1.0,)),
        "plans": ("mnist-cnn", plans, (2.0, 4.0, 8.0)),
        "records": ("mnist-cnn", records, (1.0, 2.0, 3.0, 4.0)),
        "trials": ("mnist-cnn", trials, (2.0,)),
        "steps": ("mnist-logistic", steps, (1.0,)),
        "users": ("mnist-cnn", users, (2.0,)),
        "few": ("digits-logistic", few, (0.5, 1.0)),
    }.get(asked.table, (asked.table, partial(cells, asked.table), EPSILONS))
    epsilons, columns = tuple(asked.epsilon or usual), columns()
    name = task if asked.table == task else f"{task}, {asked.table}"
    # The paper's CNN trains in the precision of its recipe, whoever chooses the rest.
    precision = paper(task, 1.0, 0.0).local.precision
    for seed in range(asked.seeds):
        for epsilon in epsilons:
            for method, make in columns.items():
                if (name, method, epsilon, seed) in _kept():
                    continue
                row = {"task": name, "method": method, "epsilon": epsilon, "seed": seed}
                row |= run(make(epsilon), seed, asked.device, precision)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), file=sys.stderr, flush=True)
    print(table(name, list(columns), epsilons))


if __name__ == "__main__":
    main()
