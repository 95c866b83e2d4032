"""report.html of a run: what came of it and what it promised, for whoever must sign for it.

A pure function of the run folder: ``verify`` seals its bytes, and an audit makes them again.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.denoisers import LaplacianSmoothing
from dpfedls.errors import InputError
from dpfedls.pages import html
from dpfedls.pages.chart import Line, line_chart
from dpfedls.privacy import bounded
from dpfedls.privacy.durable import write_whole
from dpfedls.privacy.meaning import attack_curve, best_attack, meaning
from dpfedls.privacy.wording import text
from dpfedls.runs import recipes
from dpfedls.runs.curves import charts, csv_link, shown
from dpfedls.runs.recipe import PYTHON, Recipe
from dpfedls.runs.record import RoundRecord, last_metrics
from dpfedls.runs.seal import SEALED, file_digest
from dpfedls.stepping import NoiseRate

_REPORT = "report.html"


def write_report(
    folder: Path, recipe: Recipe, rounds: Sequence[RoundRecord], facts: dict[str, Any]
) -> None:
    """report.html of one run, from its recipe, its log, its statement and its other files."""
    notes = read_notes(folder)
    place = folder.resolve().name
    named = place if recipe.task == PYTHON else recipe.task
    curve = attack_curve(facts, recipe.plan.spent(facts["mechanism"]["rounds_paid"]))
    write_whole(
        folder / _REPORT,
        html.page(
            f"{named}: {recipe.method}"
            + (f", seed {recipe.seed}" if recipe.mode == "simulation" else ""),
            _simulated(facts),
            html.cards(_headline(recipe, rounds, facts)),
            html.facts(_facts(place, recipe, notes)),
            _chosen(recipe),
            html.section("By round", charts({recipe.method: [rounds]}, _spectrum(recipe))),
            html.section(
                "What this ε means for one person",
                html.paragraph(meaning(facts, curve), "meaning"),
                attack_chart(curve),
            ),
            html.from_markdown(text(facts), 1),
            _SIGNATURE,
            html.section(
                "Files",
                html.paragraph("SHA-256 of what this page was made beside."),
                html.table(["file", "SHA-256"], _digests(folder), "Digests"),
            ),
            html.section("Do it again", html.code(_commands(place, recipe), "Commands")),
            html.section("Recipe", html.code(recipes.encode(recipe), "Recipe")),
            html.section("Data", csv_link("rounds.csv", {place: rounds})),
        ),
    )


def attack_chart(curve: Sequence[tuple[float, float]]) -> str:
    """The most that anybody gains: true against false suspicions."""
    if not curve:
        return ""
    shares = [k / 100 for k in range(101)]
    lines = {
        "the best attacker, at most": Line([(x, best_attack(curve, x)) for x in shares]),
        "guessing": Line([(0.0, 0.0), (1.0, 1.0)]),
    }
    title = "Who took part? True against false suspicions"
    return f'<div class="charts">{line_chart(lines, title, "false", "true")}</div>'


def _headline(
    recipe: Recipe, rounds: Sequence[RoundRecord], facts: dict[str, Any]
) -> dict[str, str]:
    spent, metrics = facts["epsilon"], last_metrics(rounds)
    infinite = spent is None or math.isinf(spent)
    return {
        f"ε at δ = {facts['delta']:.2g}": "∞, not private" if infinite else f"{spent:.4g}",
        **{f"test {name}": shown(name, value) for name, value in metrics.items()},
        "rounds": f"{len(rounds)} of {recipe.plan.rounds}",
        "people": f"{recipe.plan.num_clients:,}",
        "mode": recipe.mode,
    }


def _facts(place: str, recipe: Recipe, notes: dict[str, Any]) -> dict[str, str]:
    plan, model = recipe.plan, notes.get("model", {})
    clipping = plan.clipping
    found = {
        "Started": notes.get("started", ""),
        "Folder": place,
        "Made by": ", then ".join(notes.get("made_by", [])),
        "Model": f"{model['class']}, {model['parameters']:,} trained parameters" if model else "",
        "Data": recipe.task,
        "People": f"{plan.num_clients:,}, of whom {plan.expected_cohort:g} are expected in a round",
        "Clients train": _settings(recipe.local),
        "Clip norm": f"{clipping.start:g}" if clipping.start == plan.clip_norm else
        f"starts at {clipping.start:g}, then follows a quantile of the updates' lengths",
        "Noise multiplier": f"{plan.noise:.6g}",
        "Method": recipe.method,
        "Server rate": _server_rate(recipe),
        "Engine": notes.get("engine", ""),
        "Own code": ", ".join(f"{c['used_as']}: {c['name']}" for c in notes.get("own_code", []))
        or ", ".join(recipe.own_code),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _server_rate(recipe: Recipe) -> str:
    rate = recipe.server_rate
    falls = {"root": ", falling to zero as the root of the rounds left"}
    falls |= {"linear": ", falling linearly to zero"}
    said = (
        f"such that a weight gathers noise of {rate.noise:g} in the whole run, at most "
        f"{rate.at_most:g}"
        if isinstance(rate, NoiseRate)
        else str(rate)
    )
    return said + falls.get(recipe.schedule, "")


def _chosen(recipe: Recipe) -> str:
    """What nobody gave, with the reason for each choice."""
    if not recipe.chosen:
        return ""
    rows = [[key, why] for key, why in recipe.chosen.items()]
    return html.section("What was chosen", html.table(["setting", "why"], rows, "Choices"))


def _settings(component: msgspec.Struct) -> str:
    values = msgspec.to_builtins(component)
    said = (f"{key.replace('_', ' ')} {value}" for key, value in values.items())
    return ", ".join(word for word in said if not word.endswith("None"))


def _spectrum(recipe: Recipe) -> str:
    """Noise power by frequency before and after smoothing, which the recipe alone tells."""
    denoiser, plan = recipe.denoiser, recipe.plan
    if not isinstance(denoiser, LaplacianSmoothing) or not denoiser.strength or not plan.is_private:
        return ""
    level = (plan.noise_stddev(plan.clipping.start) / plan.expected_cohort) ** 2
    # Eigenvalues of I + σL on a ring: 1 + 4σ sin²(πf), f cycles per coordinate.
    waves = [k / 200 for k in range(101)]
    gains = [1 / (1 + 4 * denoiser.strength * math.sin(math.pi * f) ** 2) for f in waves]
    lines = {
        "before smoothing": Line([(0.0, level), (0.5, level)]),
        "after": Line([(f, level * g * g) for f, g in zip(waves, gains, strict=True)]),
    }
    title = "Noise power in one release, by frequency along the ring"
    return line_chart(lines, title, "cycles per coordinate", "power", log_y=True)


def _commands(place: str, recipe: Recipe) -> str:
    folder = shlex.quote(place)
    again = [f"dpfedls run {folder}/recipe.toml --out {folder}-again"]
    if recipe.task == PYTHON:
        again = ["# call dpfedls.train with the same arguments and another folder"]
    elif recipe.nodes is not None:
        again = [f"# on nodes: flwr run, or dpfedls deploy local {folder}/recipe.toml --nodes 4"]
    elif recipe.mode == "deployed":
        again.append("# the noise is then another, and it is paid for again")
    checks = [f"dpfedls privacy verify {folder}", f"dpfedls privacy statement {folder}"]
    return "\n".join([*checks, *again])


def _digests(folder: Path) -> list[list[str]]:
    """Of all files that are sealed with the report, but for itself."""
    there = [name for name in SEALED if name != _REPORT and (folder / name).is_file()]
    return [[name, file_digest(folder / name)] for name in there]


def read_notes(folder: Path) -> dict[str, Any]:
    """When, by which code and for which model the run was made."""
    path = folder / "notes.json"
    if not path.is_file():
        return {}
    try:
        raw = bounded.read_bounded(path, bounded.STATEMENT)
        return msgspec.convert(json.loads(raw), dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); it says by which code the run was made: restore it "
            "from a backup, or remove it"
        ) from error


def _simulated(facts: dict[str, Any]) -> str:
    if facts["mode"] != "simulation":
        return ""
    return html.paragraph(
        "A simulation: it says what the same run would cost when deployed, and protects nobody.",
        "note",
    )


_SIGNATURE = (
    '<div class="signature"><div>name</div><div>place and date</div><div>signature</div></div>'
)
