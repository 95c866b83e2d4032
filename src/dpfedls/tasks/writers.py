"""MNIST by the people who wrote it: 539 of them, with 19 to 131 digits each.

A sample is a 28×28 image of a digit and which digit it is; a person is whoever wrote it. The ids
are QMNIST's (Yadav and Bottou 2019, "Cold case: the lost MNIST digits"), in the order of MNIST's
own files, and travel with the package. MNIST's test images are by 297 other writers.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.mnist import read
from dpfedls.tasks.models import logistic_regression
from dpfedls.tasks.partition import natural
from dpfedls.tasks.task import Task


def make(num_clients: int, streams: SeededStreams) -> Task:
    """Writers of training images, drawn at random if not all; those not drawn validate."""
    owners, _ = writers()
    people = np.unique(owners)
    if num_clients > len(people):
        raise InputError(
            f"plan.num_clients = {num_clients}, but {len(people)} people wrote MNIST's training "
            f"images; use at most {len(people)}"
        )
    drawn = streams.generator("partition").permutation(people)[:num_clients]
    trained = np.isin(owners, drawn)
    features, targets = read("train")
    own, others = (torch.from_numpy(np.flatnonzero(rows)) for rows in (trained, ~trained))
    return Task(
        natural(features[own], targets[own], owners[trained]),
        logistic_regression(784, 10),
        test=read("t10k"),
        validation=(features[others], targets[others]) if len(others) else None,
        test_from="MNIST's test images, by 297 writers who are not trained on",
    )


def writers() -> tuple[np.ndarray, np.ndarray]:
    """Who wrote each training image and each test image: numbers, none in both."""
    file = resources.files("dpfedls").joinpath("tasks", "mnist_writer_ids.npz")
    with file.open("rb") as content, np.load(content) as ids:
        return ids["train_writer"], ids["test_writer"]
