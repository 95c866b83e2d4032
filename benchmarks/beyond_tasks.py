"""Tasks for benchmarks/beyond.py that the paper does not have."""

from __future__ import annotations

import torch
from torch import nn

from dpfedls import Task
from dpfedls.randomness import SeededStreams
from dpfedls.tasks import svhn_images
from dpfedls.tasks.mnist import read
from dpfedls.tasks.models import Standardise
from dpfedls.tasks.partition import iid
from dpfedls.tasks.pretrain import pretrained_cnn
from dpfedls.tasks.svhn import MEAN, STDDEV


def mnist_cnn(num_clients: int, streams: SeededStreams) -> Task:
    """50 MNIST images a person and a CNN of 110,000 parameters."""
    return _mnist(small_cnn(nn.ReLU), 50 * num_clients, num_clients, streams)


def mnist_all(num_clients: int, streams: SeededStreams) -> Task:
    """All 60,000 images dealt out to these people; the same CNN."""
    return _mnist(small_cnn(nn.ReLU), 60_000, num_clients, streams)


def mnist_all_tanh(num_clients: int, streams: SeededStreams) -> Task:
    """The same with tanh, as a tempered sigmoid."""
    return _mnist(small_cnn(nn.Tanh), 60_000, num_clients, streams)


def mnist_all_linear(num_clients: int, streams: SeededStreams) -> Task:
    """The same with a linear model."""
    return _mnist(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), 60_000, num_clients, streams)


def _mnist(model: nn.Module, images: int, num_clients: int, streams: SeededStreams) -> Task:
    (x, y), (test_x, test_y) = ((f.unflatten(1, (1, 28, 28)), t) for f, t in map(read, PARTS))
    order = torch.from_numpy(streams.generator("split").permutation(len(y)))[:images]
    return Task(
        iid(x[order], y[order], num_clients, streams.generator("partition")),
        model,
        test=(test_x, test_y),
        test_from="MNIST's test images, which are dealt out to nobody",
    )


def small_cnn(activation: type[nn.Module]) -> nn.Sequential:
    """Two convolutions, two full layers, 110,000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 60),
        activation(),
        nn.Linear(60, 10),
    )


def svhn_36k(num_clients: int, streams: SeededStreams) -> Task:
    """36 SVHN images a person, 4,000 to test on, and the paper's CNN, pre-trained on MNIST."""
    (x, y), (test_x, test_y) = svhn_images.read("train"), svhn_images.read("test")
    rng = streams.generator("split")
    order = torch.from_numpy(rng.permutation(len(y)))[: 36 * num_clients]
    held = torch.from_numpy(rng.permutation(len(test_y)))[:4000]
    return Task(
        iid(x[order], y[order], num_clients, streams.generator("partition")),
        nn.Sequential(Standardise(MEAN, STDDEV), *pretrained_cnn()),
        test=(test_x[held], test_y[held]),
        test_from="SVHN's test images, which are dealt out to nobody",
    )


PARTS = ("train", "t10k")
