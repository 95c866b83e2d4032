"""Membership inference by threshold (Yeom et al. 2018): who was trained on has a smaller loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from dpfedls.clients import as_input
from dpfedls.errors import InputError
from dpfedls.experiments.folder import read_recipe
from dpfedls.local_update import cross_entropy
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.task import make_task

_BATCH = 2000


def attack(folder: Path, most: int = 10_000) -> dict[str, Any]:
    """Tell members from others by their loss under a finished run's model: ROC and its area.

    As many of each side, at most ``most``, drawn by the run's seed. 0.5 is a coin; a model that
    nobody could learn membership from stays near it.
    """
    recipe = read_recipe(folder)
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder} has no model yet; finish the run with: dpfedls resume {folder}")
    streams = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, streams)
    task.model.load_state_dict(load_file(folder / "model.safetensors"))
    members = np.concatenate(
        [np.arange(s, s + n) for s, n in zip(task.data.starts, task.data.sizes, strict=True)]
    )
    rng = streams.generator("attack")
    count = min(most, len(members), len(task.test[1]))
    inside = torch.from_numpy(rng.permutation(members)[:count])
    outside = torch.from_numpy(rng.permutation(len(task.test[1]))[:count])
    losses = [
        _losses(task.model, task.data.features[inside], task.data.targets[inside]),
        _losses(task.model, task.test[0][outside], task.test[1][outside]),
    ]
    return {"members": count, "non_members": count, **roc(*losses)}


def roc(members: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    """The attack's curve over all thresholds, thinned to about a hundred points, and its area."""
    try:
        from sklearn.metrics import roc_auc_score, roc_curve
    except ImportError as error:
        raise InputError(
            "the attack's ROC needs the package scikit-learn, which is not installed; "
            "run: pip install 'dpfedls[attack]'"
        ) from error
    truth = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    scores = -np.concatenate([members, others])  # a small loss speaks for membership
    false, true, _ = roc_curve(truth, scores)
    kept = np.unique(np.linspace(0, len(false) - 1, 101).astype(int))
    return {
        "auc": float(roc_auc_score(truth, scores)),
        "false_positive_rate": false[kept].tolist(),
        "true_positive_rate": true[kept].tolist(),
    }


@torch.no_grad()
def _losses(model: torch.nn.Module, features: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    parts = zip(features.split(_BATCH), targets.split(_BATCH), strict=True)
    return torch.cat([cross_entropy(model(as_input(x)), as_input(y)) for x, y in parts]).numpy()
