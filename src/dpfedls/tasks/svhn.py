"""Street View House Numbers: the CNN of Section 5.2, on the full .mat files or on 5,000 images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import data_file
from dpfedls.tasks.models import cnn
from dpfedls.tasks.partition import iid
from dpfedls.tasks.task import Task

# Of the training images, colour by colour.
_MEAN = np.array([0.4377, 0.4438, 0.4728], dtype=np.float32)
_STDDEV = np.array([0.1980, 0.2010, 0.1970], dtype=np.float32)
_VALIDATION = 10_000  # of the 26,032 test images; the other 16,032 are the test


def make(num_clients: int, streams: SeededStreams) -> Task:
    """Train and extra images among the clients, evenly and at random."""
    parts = [_read_mat(f"{part}_32x32.mat") for part in ("train", "extra")]
    features, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    data = iid(features, targets, num_clients, streams.generator("partition"))
    judged, labels = _read_mat("test_32x32.mat")
    kept = torch.from_numpy(streams.generator("split").permutation(len(labels))[_VALIDATION:])
    return Task(data, cnn(), (judged[kept], labels[kept]))


def make_small(num_clients: int, streams: SeededStreams) -> Task:
    """4,000 of the first 5,000 test images among the clients; the other 1,000 are the test."""
    with np.load(data_file("svhn", "svhn_test_first5000_32x32.npz")) as file:
        features, targets = standardised(file["X"]), torch.from_numpy(file["y"].astype(np.int64))
    order = torch.from_numpy(streams.generator("split").permutation(len(targets)))
    trained, held = order[:4000], order[4000:]
    data = iid(features[trained], targets[trained], num_clients, streams.generator("partition"))
    return Task(data, cnn(), (features[held], targets[held]))


def standardised(images: np.ndarray) -> Tensor:
    """(n, 32, 32, 3) bytes to (n, 3, 32, 32) floats with mean and deviation taken out."""
    scaled = (images.astype(np.float32) / 255 - _MEAN) / _STDDEV
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy())


def _read_mat(name: str) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat

    content = loadmat(data_file("svhn", name))
    labels = content["y"].reshape(-1).astype(np.int64) % 10  # the files write 0 as 10
    return standardised(content["X"].transpose(3, 0, 1, 2)), torch.from_numpy(labels)
