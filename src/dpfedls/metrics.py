"""How good a model is on samples that nobody's privacy depends on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpfedls.local_sgd import Loss
from dpfedls.samples import Samples, as_input, each

_BATCH = 2000  # bounds memory; a forward pass gains nothing from larger ones


@torch.no_grad()
def evaluate(model: nn.Module, samples: Samples, loss: Loss) -> tuple[float | None, float]:
    """Accuracy (None where targets are not labels) and mean loss."""
    device = next(model.parameters()).device
    correct, total = torch.zeros((), device=device), torch.zeros((), device=device)
    labels = not samples[1].is_floating_point()
    for start in range(0, len(samples[1]), _BATCH):
        features, targets = each(
            lambda part, at=start: as_input(part[at : at + _BATCH].to(device)), samples
        )
        outputs = model(features)
        labels = labels and isinstance(outputs, Tensor) and outputs.dim() == targets.dim() + 1
        total += loss(outputs, targets).sum()
        if labels:
            correct += (outputs.argmax(dim=-1) == targets).sum()
    count = len(samples[1])
    return (float(correct) / count if labels else None), float(total) / count
