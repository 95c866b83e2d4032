"""Street View House Numbers: the CNN of Section 5.2, on the full .mat files or on 5,000 images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import data_file
from dpfedls.tasks.models import Standardise, cnn
from dpfedls.tasks.partition import iid
from dpfedls.tasks.pretrain import pretrained_cnn
from dpfedls.tasks.reading import reading
from dpfedls.tasks.task import Task

# Of the training images, colour by colour.
MEAN, STDDEV = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
_VALIDATION = 10_000  # of the 26,032 test images; the other 16,032 are the test


def make(num_clients: int, streams: SeededStreams) -> Task:
    """Train and extra images among the clients; the network starts from MNIST, as in the paper."""
    return _task(num_clients, streams, pretrained_cnn())


def make_scratch(num_clients: int, streams: SeededStreams) -> Task:
    """The same from random weights."""
    return _task(num_clients, streams, cnn())


def _task(num_clients: int, streams: SeededStreams, network: nn.Sequential) -> Task:
    parts = [_read_mat(f"{part}_32x32.mat") for part in ("train", "extra")]
    features, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    data = iid(features, targets, num_clients, streams.generator("partition"))
    judged, labels = _read_mat("test_32x32.mat")
    order = torch.from_numpy(streams.generator("split").permutation(len(labels)))
    validation, test = order[:_VALIDATION], order[_VALIDATION:]
    return Task(
        data,
        nn.Sequential(Standardise(MEAN, STDDEV), *network),
        test=(judged[test], labels[test]),
        validation=(judged[validation], labels[validation]),
    )


def make_small(num_clients: int, streams: SeededStreams) -> Task:
    """4,000 of the first 5,000 test images among the clients; the other 1,000 are the test."""
    path = data_file("svhn", "svhn_test_first5000_32x32.npz")
    with reading(path), np.load(path) as file:
        features, targets = _tensors(file["X"].transpose(0, 3, 1, 2), file["y"])
    order = torch.from_numpy(streams.generator("split").permutation(len(targets)))
    trained, held = order[:4000], order[4000:]
    data = iid(features[trained], targets[trained], num_clients, streams.generator("partition"))
    model = nn.Sequential(Standardise(MEAN, STDDEV), *cnn())
    return Task(data, model, (features[held], targets[held]))


def _read_mat(name: str) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat

    path = data_file("svhn", name)
    with reading(path):
        content = loadmat(path)
    labels = content["y"].reshape(-1) % 10  # the files write 0 as 10
    return _tensors(content["X"].transpose(3, 2, 0, 1), labels)


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """Bytes of shape (n, 3, 32, 32), and labels."""
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))
