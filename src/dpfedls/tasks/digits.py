"""scikit-learn's 1,797 digits of 8×8 pixels: a task on which smoothing hurts."""

from __future__ import annotations

import torch

from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.models import logistic_regression
from dpfedls.tasks.partition import iid
from dpfedls.tasks.task import Task


def make(num_clients: int, streams: SeededStreams) -> Task:
    """1,437 images among the clients, evenly and at random; the other 360 are the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            "the 8×8 digits come inside the package scikit-learn, which is not installed; "
            "run: pip install 'dpfedls[digits]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    features = torch.from_numpy((pixels / 16 - 0.305) / 0.376).float()  # mean and deviation out
    targets = torch.from_numpy(labels).long()
    order = torch.from_numpy(streams.generator("split").permutation(len(targets)))
    trained, held = order[:1437], order[1437:]
    data = iid(features[trained], targets[trained], num_clients, streams.generator("partition"))
    return Task(data, logistic_regression(64, 10), (features[held], targets[held]))
