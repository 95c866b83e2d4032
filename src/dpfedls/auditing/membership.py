"""Membership inference by threshold (Yeom et al. 2018): who was trained on has a smaller loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from dpfedls.errors import InputError
from dpfedls.people.losses import Loss
from dpfedls.people.samples import Samples, each, portions
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.task import Task


def sides(task: Task, streams: SeededStreams, most: int = 10_000) -> tuple[Samples, Samples]:
    """Members and others, as many of each, at most ``most``; the same ones for the same seed."""
    if task.test is None:
        raise InputError("the task has no test samples, so there is nobody to tell members from")
    data, (features, targets) = task.data, task.test
    spans = zip(data.starts, data.sizes, strict=True)
    members = np.concatenate([np.arange(start, start + size) for start, size in spans])
    count = min(most, len(members), len(targets))
    rng = streams.generator("attack")
    inside = torch.from_numpy(rng.permutation(members)[:count])
    outside = torch.from_numpy(rng.permutation(len(targets))[:count])
    return data.take(inside), (each(lambda x: x[outside], features), targets[outside])


def threshold_attack(
    model: nn.Module, loss: Loss, members: Samples, others: Samples
) -> dict[str, Any]:
    """Tell the two apart by their loss under the model: ROC and its area."""
    return roc(_losses(model, loss, members), _losses(model, loss, others))


def roc(members: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    """The attack's curve over all thresholds, thinned to about a hundred points, and its area."""
    require_scikit_learn()
    from sklearn.metrics import roc_auc_score, roc_curve

    truth = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    scores = -np.concatenate([members, others])  # a small loss speaks for membership
    false, true, _ = roc_curve(truth, scores)
    kept = np.unique(np.linspace(0, len(false) - 1, 101).astype(int))
    return {
        "auc": float(roc_auc_score(truth, scores)),
        "false_positive_rate": false[kept].tolist(),
        "true_positive_rate": true[kept].tolist(),
    }


def require_scikit_learn() -> None:
    """Say what to install before hours of training rather than after."""
    try:
        import sklearn.metrics  # noqa: F401
    except ImportError as error:
        raise InputError(
            "the attack's ROC needs the package scikit-learn, which is not installed; "
            "run: pip install 'dpfedls[attack]'"
        ) from error


@torch.no_grad()
def _losses(model: nn.Module, loss: Loss, samples: Samples) -> np.ndarray:
    device = next(model.parameters()).device
    losses = [loss(model(x), y) for x, y in portions(samples, device)]
    # A loss that overflows is the largest there is, which speaks against membership.
    return torch.cat(losses).nan_to_num(nan=torch.finfo(torch.float32).max).cpu().numpy()
