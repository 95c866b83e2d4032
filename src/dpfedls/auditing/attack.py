"""The membership attack on a run: on its final model, and round by round where that was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dpfedls.auditing.diagnostics import read_diagnostics
from dpfedls.auditing.membership import sides, threshold_attack
from dpfedls.randomness import SeededStreams
from dpfedls.runs.attacked import Attacked, keep_attack
from dpfedls.runs.folder import read_recipe
from dpfedls.runs.load import load
from dpfedls.runs.simulate import trusted
from dpfedls.tasks.task import make_task


def attack(folder: Path, most: int = 10_000, *, trust: bool = False) -> dict[str, Any]:
    """Tell members from others by their loss under a finished run's model: ROC and its area.

    As many of each side, at most ``most``, drawn by the run's seed. 0.5 is a coin; a model that
    nobody could learn membership from stays near it. Beside a simulated run the result is kept, for
    its report; beside a deployed one it is not: no ε covers it.
    """
    recipe = trusted(read_recipe(folder), folder, trust)
    streams = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, streams)
    model = load(folder, task.model)
    members, others = sides(task, streams, most)
    counts = {"members": len(members[1]), "non_members": len(others[1])}
    found = {**counts, **threshold_attack(model, task.loss, members, others)}
    if recipe.mode == "simulation":
        keep_attack(folder, msgspec.convert(found, Attacked))
    if recipe.diagnose:
        lines = read_diagnostics(folder)
        found["by_round"] = [{"round": line.round, "auc": line.attack_auc} for line in lines]
    return found
