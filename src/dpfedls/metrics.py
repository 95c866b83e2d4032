"""How good a model is on samples that nobody's privacy depends on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfedls.clients import as_input
from dpfedls.local_sgd import Loss

_BATCH = 2000  # bounds memory; a forward pass gains nothing from larger ones


@torch.no_grad()
def evaluate(
    model: nn.Module, samples: tuple[Tensor, Tensor], loss: Loss
) -> tuple[float | None, float]:
    """Accuracy (None where targets are not labels) and mean loss."""
    device = next(model.parameters()).device
    correct, total = torch.zeros((), device=device), torch.zeros((), device=device)
    labels = not samples[1].is_floating_point()
    for features, targets in zip(*(part.split(_BATCH) for part in samples), strict=True):
        targets = as_input(targets.to(device))
        outputs = model(as_input(features.to(device)))
        total += loss(outputs, targets).sum()
        if labels:
            correct += (outputs.argmax(dim=-1) == targets).sum()
    count = len(samples[1])
    return (float(correct) / count if labels else None), float(total) / count
