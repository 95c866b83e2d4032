"""All of MNIST: logistic regression as in Section 6.1 of the paper."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpfedls.people.clients import ClientData
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import data_file
from dpfedls.tasks.models import logistic_regression
from dpfedls.tasks.partition import dirichlet, iid
from dpfedls.tasks.reading import gunzip, reading
from dpfedls.tasks.task import Task

MEAN, STDDEV = 0.1307, 0.3081  # of the 60,000 training images, scaled to [0, 1]
_TRAINED = 50_000  # the other 10,000 training images are for validation
_UNPACKED = 2**28  # bytes: several times the largest file
_CONCENTRATION = 0.5  # people who write mostly two or three of the ten digits


def make(num_clients: int, streams: SeededStreams) -> Task:
    """50,000 training images among the clients, evenly and at random; the 10,000 test images."""
    return _task(streams, lambda x, y, rng: iid(x, y, num_clients, rng))


def make_dirichlet(num_clients: int, streams: SeededStreams) -> Task:
    """The same images, but every client has digits of its own preference."""
    return _task(streams, lambda x, y, rng: dirichlet(x, y, num_clients, _CONCENTRATION, rng))


def _task(
    streams: SeededStreams, divide: Callable[[Tensor, Tensor, np.random.Generator], ClientData]
) -> Task:
    features, targets = read("train")
    order = torch.from_numpy(streams.generator("split").permutation(len(targets)))
    trained, held = order[:_TRAINED], order[_TRAINED:]
    data = divide(features[trained], targets[trained], streams.generator("partition"))
    return Task(
        data,
        logistic_regression(784, 10),
        test=read("t10k"),
        validation=(features[held], targets[held]),
        test_from="MNIST's test images, which are dealt out to nobody",
    )


def read(part: str) -> tuple[Tensor, Tensor]:
    """Standardised flat images and labels of the part "train" or "t10k"."""
    return _read(*(data_file("mnist", name) for name in names(part)))


def names(part: str) -> tuple[str, str]:
    """The files of a part: images and labels."""
    return f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"


@functools.cache  # a grid makes the same task many times in one process
def _read(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    pixels, digits = read_idx(images), read_idx(labels)
    return standardised(pixels.reshape(len(digits), -1)), torch.from_numpy(digits.astype(np.int64))


def read_idx(path: Path) -> np.ndarray:
    """The bytes of an idx file, in the shape that its header says."""
    with reading(path):
        raw = gunzip(path, _UNPACKED)
        dims = raw[3]
        shape = np.frombuffer(raw, dtype=">i4", count=dims, offset=4)
        return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dims).reshape(shape)


def standardised(pixels: np.ndarray) -> Tensor:
    """Grey levels 0 to 255 with MNIST's mean and deviation taken out."""
    return torch.from_numpy((pixels.astype(np.float32) / 255 - MEAN) / STDDEV)
