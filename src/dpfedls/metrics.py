"""How good a model is on samples that nobody's privacy depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dpfedls.errors import InputError
from dpfedls.people.losses import Loss, require_one_loss_per_sample
from dpfedls.people.samples import Samples, each, joined, portions

Metric: TypeAlias = Callable[[Any, Tensor], "Tensor | float"]
"""``metric(outputs, targets)``: one number for all samples, or one per sample to be averaged."""
Metrics: TypeAlias = Mapping[str, Metric]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One per sample: the share of its labels that the largest output names."""
    right = (outputs.argmax(dim=-1) == targets).float()
    return right.flatten(1).mean(dim=1) if right.dim() > 1 else right


@torch.no_grad()
def evaluate(model: nn.Module, samples: Samples, loss: Loss, metrics: Metrics) -> dict[str, float]:
    """The mean loss, as ``loss``, and every metric by its name."""
    device, count = next(model.parameters()).device, len(samples[1])
    sums: dict[str, Tensor] = {}
    kept: list[tuple[Any, Tensor]] = []  # only where a metric needs all samples at once
    for x, y in portions(samples, device):
        outputs = model(x)
        losses = loss(outputs, y)
        require_one_loss_per_sample(losses, len(y))
        values = {name: _value(name, metric, outputs, y) for name, metric in metrics.items()}
        for name, value in (values | {"loss": losses}).items():
            if value.dim():
                sums[name] = sums.get(name, torch.zeros((), device=device)) + value.float().sum()
        if len(sums) < len(metrics) + 1:
            kept.append(each(lambda part: part.cpu(), (outputs, y)))
    found = {name: float(total) / count for name, total in sums.items()}
    if kept:
        everything, labels = joined(kept)
        for name in metrics.keys() - sums.keys():
            found[name] = float(_value(name, metrics[name], everything, labels))
    return found


def _value(name: str, metric: Metric, outputs: Any, targets: Tensor) -> Tensor:
    try:
        value = torch.as_tensor(metric(outputs, targets))
        if value.dim() and value.shape != targets.shape[:1]:
            raise ValueError(f"it gave a tensor of shape {tuple(value.shape)}")
    except Exception as error:
        raise InputError(
            f"{name} fails on outputs of the model and {len(targets)} targets ({error}); it must "
            "give one number, or one per sample"
        ) from error
    return value
