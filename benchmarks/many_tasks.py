"""Tasks for foreign.py with many people, where noise is little and people differ.

One pass over one's own samples (``auto.by_model``) was chosen on these, on `crowd`, `many_people`
and `lectures`, with seed 0 and its test samples in sight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import foreign_tasks
import numpy as np
from foreign_tasks import HELD
from torch import nn

from dpfedls import Task

_task, _equal = foreign_tasks._task, foreign_tasks._equal
ONE_EACH = 52_000


def one_image(rng: np.random.Generator) -> Task:
    """52,000 people with one MNIST image of 14×14 each, an MLP."""
    net = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    return _task(*foreign_tasks._small_mnist(rng, ONE_EACH, 1), _equal(ONE_EACH, 1), net)


def one_image_tanh(rng: np.random.Generator) -> Task:
    """The same by a CNN with tanh."""
    net = nn.Sequential(
        nn.Unflatten(1, (1, 14, 14)),
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(144, 10),
    )  # fmt: skip
    return _task(*foreign_tasks._small_mnist(rng, ONE_EACH, 1), _equal(ONE_EACH, 1), net)


def ten_images(rng: np.random.Generator) -> Task:
    """5,000 people with ten MNIST images of 14×14 each, an MLP."""
    net = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    return _task(*foreign_tasks._small_mnist(rng, 5000, 10), _equal(5000, 10), net)


def ten_images_deep(rng: np.random.Generator) -> Task:
    """The same by an MLP of six layers."""
    pairs = itertools.pairwise([196, 32, 32, 32, 32, 32])
    hidden = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*hidden, nn.Linear(32, 10))
    return _task(*foreign_tasks._small_mnist(rng, 5000, 10), _equal(5000, 10), net)


def thirty_rows(rng: np.random.Generator) -> Task:
    """10,000 people of 30 rows of 30 columns, 5 classes, an MLP."""
    x, y = foreign_tasks._table(10_000 * 30 + 2 * HELD, 30, 5, rng)
    net = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 5))
    return _task(foreign_tasks._scaled(x), y, _equal(10_000, 30), net)


def long_tail(rng: np.random.Generator) -> Task:
    """8,000 people: half of them with 4 rows of 25 columns or fewer, a few with 200; 8 classes."""
    sizes = np.minimum(200, np.ceil(rng.pareto(1.1, 8000) * 2 + 1)).astype(int)
    x, y = foreign_tasks._table(int(sizes.sum()) + 2 * HELD, 25, 8, rng)
    net = nn.Sequential(nn.Linear(25, 64), nn.Tanh(), nn.Linear(64, 8))
    return _task(foreign_tasks._scaled(x), y, sizes, net)


TASKS: dict[str, Callable[[np.random.Generator], Task]] = {
    make.__name__: make
    for make in (one_image, one_image_tanh, ten_images, ten_images_deep, thirty_rows, long_tail)
}
