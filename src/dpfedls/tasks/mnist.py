"""All of MNIST: logistic regression as in Section 5.1 of the paper."""

from __future__ import annotations

import gzip

import numpy as np
import torch
from torch import Tensor

from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import data_file
from dpfedls.tasks.models import logistic_regression
from dpfedls.tasks.partition import iid
from dpfedls.tasks.task import Task

MEAN, STDDEV = 0.1307, 0.3081  # of the 60,000 training images, scaled to [0, 1]
_TRAINED = 50_000  # the other 10,000 training images are for validation


def make(num_clients: int, streams: SeededStreams) -> Task:
    """50,000 training images among the clients, evenly and at random; the 10,000 test images."""
    features, targets = read("train")
    kept = torch.from_numpy(streams.generator("split").permutation(len(targets))[:_TRAINED])
    data = iid(features[kept], targets[kept], num_clients, streams.generator("partition"))
    return Task(data, logistic_regression(784, 10), read("t10k"))


def read(part: str) -> tuple[Tensor, Tensor]:
    """Standardised flat images and labels of the part "train" or "t10k"."""
    images = _read_idx(f"{part}-images-idx3-ubyte.gz", header=16)
    labels = _read_idx(f"{part}-labels-idx1-ubyte.gz", header=8)
    return standardised(images.reshape(len(labels), -1)), torch.from_numpy(labels.astype(np.int64))


def standardised(pixels: np.ndarray) -> Tensor:
    """Grey levels 0 to 255 with MNIST's mean and deviation taken out."""
    return torch.from_numpy((pixels.astype(np.float32) / 255 - MEAN) / STDDEV)


def _read_idx(name: str, header: int) -> np.ndarray:
    with gzip.open(data_file("mnist", name)) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)
