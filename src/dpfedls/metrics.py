"""How good a model is on samples that nobody's privacy depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dpfedls.errors import InputError
from dpfedls.people.losses import Loss, require_one_loss_per_sample
from dpfedls.people.samples import Samples, as_input, each, joined

Metric: TypeAlias = Callable[[Any, Tensor], "Tensor | float"]
"""``metric(outputs, targets)``: one number for all samples, or one per sample to be averaged."""
Metrics: TypeAlias = Mapping[str, Metric]

_BATCH, _LARGEST = 2000, 2**16


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
    for x, y in batches(samples, device):
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


def batches(samples: Samples, device: torch.device) -> Iterator[Samples]:
    """All samples in order, where the model lies, as many at a time as memory bears.

    On a CPU a forward pass gains nothing from large batches. On a GPU a model of many small kernels
    (an LSTM) waits for their launches, so the first batch shows what a sample takes.
    """
    start, size, gpu = 0, _BATCH, device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    while start < len(samples[1]):
        here = slice(start, start + size)
        yield each(lambda part, here=here: as_input(part[here].to(device)), samples)
        if gpu and start == 0:
            taken = torch.cuda.max_memory_allocated(device) - before
            size = batch_size(taken, torch.cuda.get_device_properties(device).total_memory)
        start = here.stop


def batch_size(taken: int, memory: int) -> int:
    """Samples at a time on a card of ``memory`` bytes, where ``_BATCH`` of them took ``taken``.

    A sixteenth of the card may be used: others may have the rest. What is free does not count, so
    that the same card evaluates in the same batches again.
    """
    doublings = (memory // (16 * max(1, taken))).bit_length() - 1
    return min(_LARGEST, _BATCH << max(0, doublings))


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
