"""Several runs on one page: a table, curves with bands over seeds, their statements, their data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from pathlib import Path

import msgspec

from dpfedls.pages import html
from dpfedls.pages.chart import Line, line_chart
from dpfedls.privacy.durable import write_whole
from dpfedls.privacy.meaning import attack_curve, meaning
from dpfedls.privacy.wording import text
from dpfedls.runs.attacked import read_attack
from dpfedls.runs.curves import Log, charts, csv_link, shown
from dpfedls.runs.folder import read_recipe, read_rounds, require_outside_runs
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import last_metrics
from dpfedls.runs.seal import STATEMENT
from dpfedls.runs.verify import read_statement, verify


def compare(folders: Sequence[Path], out: Path) -> None:
    """Curves, final figures and statements of the runs, as one HTML file."""
    require_outside_runs(out)
    runs = dict(zip(_names(folders), folders, strict=True))
    recipes = {name: read_recipe(folder) for name, folder in runs.items()}
    logs = {name: read_rounds(folder) for name, folder in runs.items()}
    grouped = {label: [logs[name] for name in names] for label, names in _by_seed(recipes).items()}
    page = html.page(
        "Runs compared",
        _table(recipes, logs),
        html.section("By round", charts(grouped)),
        html.section("Attack", _attacks(recipes, runs)),
        html.section(
            "Privacy statements",
            *(_statement(name, recipes[name], folder) for name, folder in runs.items()),
        ),
        html.section("Data", csv_link("runs.csv", logs)),
    )
    write_whole(out, page)


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or their paths where two have the same."""
    own = [folder.resolve().name for folder in folders]
    return own if len(set(own)) == len(own) else [str(folder) for folder in folders]


def _by_seed(recipes: dict[str, Recipe]) -> dict[str, list[str]]:
    """Runs that differ in nothing but the seed, under what their names have in common."""
    alike: list[tuple[Recipe, list[str]]] = []
    for name, recipe in recipes.items():
        plain = msgspec.structs.replace(recipe, seed=0, device="cpu", engine="auto")
        for known, names in alike:
            if known == plain:
                names.append(name)
                break
        else:
            alike.append((plain, [name]))
    labels = {}
    for _, names in alike:
        common = re.sub(r"[-_ ]*(seed)?[-_ ]*$", "", commonprefix(names)) or names[0]  # noqa: RUF071
        label = names[0] if len(names) == 1 else f"{common}, {len(names)} seeds"
        labels[label if label not in labels else ", ".join(names)] = names
    return labels


def _table(recipes: dict[str, Recipe], logs: Mapping[str, Log]) -> str:
    last = {name: last_metrics(rounds) for name, rounds in logs.items()}
    metrics = list(dict.fromkeys(key for found in last.values() for key in found))
    header = ["run", "task", "method", "mode", "seed", "rounds", "noise", "clip", "δ", "ε"]
    rows = []
    for name, rounds in logs.items():
        recipe, spent = recipes[name], rounds[-1].epsilon if rounds else 0.0
        clip = rounds[-1].clip_norm if rounds else recipe.plan.clipping.start
        rows.append(
            [
                *(name, recipe.task, recipe.method, recipe.mode, str(recipe.seed)),
                *(f"{len(rounds)} of {recipe.plan.rounds}", f"{recipe.plan.noise:.4g}"),
                "none" if clip is None else f"{clip:.4g}",
                f"{recipe.plan.target_delta:.2g}",
                "∞" if spent is None else f"{spent:.4g}",
                *(shown(key, last[name].get(key)) for key in metrics),
            ]
        )
    return html.table([*header, *metrics], rows, "Runs")


def _attacks(recipes: dict[str, Recipe], runs: dict[str, Path]) -> str:
    """The ROC of every simulated run that was attacked, in one chart."""
    simulated = [name for name, recipe in recipes.items() if recipe.mode == "simulation"]
    tried = {name: found for name in simulated if (found := read_attack(runs[name]))}
    if not tried:
        return ""
    lines = {
        f"{name}: AUC {found.auc:.3f}": Line(
            list(zip(found.false_positive_rate, found.true_positive_rate, strict=True))
        )
        for name, found in tried.items()
    } | {"guessing: AUC 0.5": Line([(0.0, 0.0), (1.0, 1.0)])}
    title = "Member or not, by the loss? True against false suspicions"
    few = min(found.members for found in tried.values())
    said = (
        "What dpfedls attack found: it calls samples with a small loss members. With "
        f"{few} samples of each side, guessing gives an AUC of 0.5 ± {_deviation(few):.2g} (one "
        "standard deviation). These figures are made from private samples without noise; no ε "
        "covers them."
    )
    chart = line_chart(lines, title, "false", "true")
    return f'{html.paragraph(said)}<div class="charts">{chart}</div>'


def _deviation(count: int) -> float:
    """Of the AUC of a coin, with so many on either side (Mann and Whitney 1947)."""
    return math.sqrt((2 * count + 1) / (12 * count * count))


def _statement(name: str, recipe: Recipe, folder: Path) -> str:
    if not (folder / STATEMENT).is_file():
        return html.paragraph(f"{name} has not finished, so it has no privacy statement.", "quiet")
    problems = verify(folder)["problems"]
    if problems:  # nobody should sign what does not hold
        return html.paragraph(f"{name} failed verification: {problems[0]}.", "note")
    facts = read_statement(folder)
    curve = attack_curve(facts, recipe.plan.spent(facts["mechanism"]["rounds_paid"]))
    said = html.paragraph(meaning(facts, curve), "meaning") + html.from_markdown(text(facts), 2)
    return html.details(name, said)
