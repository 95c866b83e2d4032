"""Street View House Numbers: the CNN of Section 6.2 and the membership attack of Section 6.4."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import data_file
from dpfedls.tasks.models import Standardise, cnn
from dpfedls.tasks.partition import iid
from dpfedls.tasks.pretrain import pretrained_cnn
from dpfedls.tasks.reading import reading
from dpfedls.tasks.svhn_images import read
from dpfedls.tasks.task import Task

# Of the training images, colour by colour.
MEAN, STDDEV = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
_VALIDATION = 10_000  # of the 26,032 test images; the other 16,032 are the test
ATTACKED = 128  # images a client in the attack: 64,000 for 500, few enough to learn by heart


TRAIN, WITH_EXTRA = ("train",), ("train", "extra")  # parts to train on; the paper has both


def make(num_clients: int, streams: SeededStreams) -> Task:
    """The 73,257 training images among the clients; the network starts from MNIST."""
    return _task(num_clients, _samples(TRAIN), streams, pretrained_cnn())


def make_scratch(num_clients: int, streams: SeededStreams) -> Task:
    """The same from random weights."""
    return _task(num_clients, _samples(TRAIN), streams, cnn())


def make_extra(num_clients: int, streams: SeededStreams) -> Task:
    """The paper's own: the 531,131 extra images too; the network starts from MNIST."""
    return _task(num_clients, _samples(WITH_EXTRA), streams, pretrained_cnn())


def make_extra_scratch(num_clients: int, streams: SeededStreams) -> Task:
    """The same from random weights."""
    return _task(num_clients, _samples(WITH_EXTRA), streams, cnn())


def make_attack(num_clients: int, streams: SeededStreams) -> Task:
    """128 training images a client, drawn at random; the network starts from MNIST."""
    features, targets = _samples(TRAIN)
    wanted = ATTACKED * num_clients
    if wanted > len(targets):
        raise InputError(
            f"plan.num_clients = {num_clients}, but this task gives everybody {ATTACKED} images "
            f"and there are {len(targets)}; use at most {len(targets) // ATTACKED} clients"
        )
    drawn = torch.from_numpy(streams.generator("partition", 1).permutation(len(targets))[:wanted])
    return _task(num_clients, (features[drawn], targets[drawn]), streams, pretrained_cnn())


def about(parts: tuple[str, ...], num_clients: int) -> str:
    """What clients who share those parts hold, for titles."""
    extra = "with" if parts == WITH_EXTRA else "without"
    return f"SVHN {extra} extra, {len(_samples(parts)[1]) // num_clients} images a person"


def _samples(parts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    images, labels = zip(*map(read, parts), strict=True)
    return torch.cat(images), torch.cat(labels)


def _task(
    num_clients: int,
    samples: tuple[Tensor, Tensor],
    streams: SeededStreams,
    network: nn.Sequential,
) -> Task:
    data = iid(*samples, num_clients, streams.generator("partition"))
    held, labels = read("test")
    order = torch.from_numpy(streams.generator("split").permutation(len(labels)))
    validation, test = order[:_VALIDATION], order[_VALIDATION:]
    return Task(
        data,
        nn.Sequential(Standardise(MEAN, STDDEV), *network),
        test=(held[test], labels[test]),
        validation=(held[validation], labels[validation]),
    )


def make_small(num_clients: int, streams: SeededStreams) -> Task:
    """4,000 of the first 5,000 test images among the clients; the other 1,000 are the test."""
    path = data_file("svhn", "svhn_test_first5000_32x32.npz")
    with reading(path), np.load(path) as file:
        features = torch.from_numpy(np.ascontiguousarray(file["X"].transpose(0, 3, 1, 2)))
        targets = torch.from_numpy(file["y"].astype(np.int64))
    order = torch.from_numpy(streams.generator("split").permutation(len(targets)))
    trained, held = order[:4000], order[4000:]
    data = iid(features[trained], targets[trained], num_clients, streams.generator("partition"))
    model = nn.Sequential(Standardise(MEAN, STDDEV), *cnn())
    return Task(data, model, (features[held], targets[held]))
