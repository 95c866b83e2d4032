"""Generated signals with smooth class patterns: needs no data and no package; for quick trials."""

from __future__ import annotations

import torch
from torch import Tensor

from dpfedls.denoisers import smooth
from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.models import logistic_regression
from dpfedls.tasks.partition import iid
from dpfedls.tasks.task import Task

_INPUTS, _CLASSES, _TEST, _MOST = 64, 4, 400, 1_000_000


def make(num_clients: int, streams: SeededStreams) -> Task:
    """Ten signals a client, 400 to test on and 400 to validate on."""
    if num_clients > _MOST:
        raise InputError(
            f"plan.num_clients = {num_clients}, but this task draws signals for at most {_MOST}"
        )
    rng = streams.torch_generator("split")
    patterns = torch.randn(_CLASSES, _INPUTS, generator=rng)
    patterns = torch.stack([smooth(pattern, 8.0) for pattern in patterns])
    patterns *= 1.5 / patterns.std(dim=1, keepdim=True)

    def draw(samples: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(_CLASSES, (samples,), generator=rng)
        noise = torch.randn(samples, _INPUTS, generator=rng)
        return patterns[labels] + 2 * noise, labels

    data = iid(*draw(10 * num_clients), num_clients, streams.generator("partition"))
    return Task(data, logistic_regression(_INPUTS, _CLASSES), draw(_TEST), draw(_TEST))
