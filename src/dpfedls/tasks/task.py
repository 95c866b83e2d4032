"""A task: people's data, a model to train on it, and samples to evaluate it on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from dpfedls.errors import InputError, unknown
from dpfedls.metrics import Metrics, Samples, accuracy
from dpfedls.people.lazy import LazyClients, People, people
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import as_samples
from dpfedls.randomness import SeededStreams
from dpfedls.tasks import own

COLUMNS = ("round", "epsilon", "clip_norm", "server_rate", "seconds")
"""What logs and reports have of every round beside its metrics: no metric may be called so."""


@dataclass(frozen=True)
class Task:
    """What is trained on what, and what the server holds itself, which is public.

    ``loss(outputs, targets)`` gives one number per sample; each of ``metrics`` one per sample, or
    one for all. Without metrics a classifier is told its accuracy, and any model its mean loss.
    """

    data: People
    model: nn.Module
    test: Samples | None = None
    validation: Samples | None = None  # to choose settings by; not every task has it
    loss: Loss = cross_entropy
    metrics: Metrics = field(default_factory=dict)
    test_from: str = ""  # whose samples the test is: said in the privacy statement

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InputError(
                f"model is {own.name_of(self.model)}, not a torch.nn.Module; give an instance, "
                "such as torch.nn.Linear(64, 10)"
            )
        if not callable(self.loss) or isinstance(self.loss, type):
            raise InputError(
                f"loss is {own.name_of(self.loss)}, not a function of outputs and targets; give "
                'one, such as torch.nn.CrossEntropyLoss(reduction="none")'
            )
        named = isinstance(self.metrics, Mapping) and all(isinstance(n, str) for n in self.metrics)
        if not named or not all(map(callable, self.metrics.values())):
            raise InputError(
                f"metrics is {self.metrics!r}, not a dict of functions by name; give each "
                'metric its name: metrics={"mae": mae}, with mae(outputs, targets)'
            )
        object.__setattr__(self, "data", people(self.data))
        for name in ("test", "validation"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_samples(given, name))
        if isinstance(self.data, LazyClients) and self.data.like is None and self.test is not None:
            object.__setattr__(self, "data", self.data.shaped_like(self.test))
        if not isinstance(self.test_from, str):
            raise InputError(
                f"test_from = {self.test_from!r} is no text; say whose samples the test is, such "
                'as test_from="volunteers"'
            )
        if not self.metrics and self.loss is cross_entropy:
            object.__setattr__(self, "metrics", {"accuracy": accuracy})
        if "loss" in self.metrics:
            raise InputError(
                'metrics has one called "loss", which is the name of the mean loss; choose another'
            )
        for name in ("run", *COLUMNS):
            if name in self.metrics:
                raise InputError(
                    f'metrics has one called "{name}", which logs and reports have of every round '
                    "already; choose another name"
                )


TaskMaker = Callable[[int, SeededStreams], Task]

# By name, not imported: a task's packages are loaded when it is asked for.
TASKS = {
    "chitchat": "dpfedls.tasks.chitchat:make",
    "digits-logistic": "dpfedls.tasks.digits:make",
    "insteval": "dpfedls.tasks.insteval:make",
    "mnist-logistic": "dpfedls.tasks.mnist:make",
    "mnist-logistic-dirichlet": "dpfedls.tasks.mnist:make_dirichlet",
    "mnist-writers": "dpfedls.tasks.writers:make",
    "mnist5k-logistic": "dpfedls.tasks.mnist5k:make",
    "shakespeare-lstm": "dpfedls.tasks.shakespeare:make",
    "street-digits-attack": "dpfedls.paper.street_digits:make_attack",
    "street-digits-cnn": "dpfedls.paper.street_digits:make",
    "street-digits-cnn-pretrained": "dpfedls.paper.street_digits:make_pretrained",
    "svhn-attack": "dpfedls.tasks.svhn:make_attack",
    "svhn-cnn": "dpfedls.tasks.svhn:make",
    "svhn-cnn-scratch": "dpfedls.tasks.svhn:make_scratch",
    "svhn-extra-cnn": "dpfedls.tasks.svhn:make_extra",
    "svhn-extra-cnn-scratch": "dpfedls.tasks.svhn:make_extra_scratch",
    "svhn5k-cnn": "dpfedls.tasks.svhn:make_small",
    "synthetic-logistic": "dpfedls.tasks.synthetic:make",
}


# How many people the paper, or the data itself, has.
_PEOPLE = {
    "chitchat": 1100,
    "digits-logistic": 200,
    "insteval": 2600,
    "mnist-logistic": 500,
    "mnist-logistic-dirichlet": 500,
    "mnist-writers": 500,
    "mnist5k-logistic": 400,
    "shakespeare-lstm": 975,
    "svhn-cnn": 2000,
    "synthetic-logistic": 500,
}


def usual_people(name: object) -> int | None:
    """How many people a task is usually divided among; None where nobody has said."""
    return _PEOPLE.get(name) if isinstance(name, str) else None


def make_task(name: str, num_clients: int, streams: SeededStreams) -> Task:
    """The task of that name, its samples divided among ``num_clients`` people.

    A person's own is named by ``package.module:make`` or ``./file.py:make``.
    """
    if own.is_own(name):
        make: TaskMaker = own.load(name, "task")
    elif name in TASKS:
        module, maker = TASKS[name].split(":")
        make = getattr(importlib.import_module(module), maker)
    else:
        raise unknown("task", name, TASKS)
    with torch.random.fork_rng(devices=[]):  # initial weights follow the run's seed, not torch's
        torch.manual_seed(streams.torch_generator("model").initial_seed())
        task = make(num_clients, streams)
    if not isinstance(task, Task):
        raise InputError(
            f"task = {name!r} returned {type(task).__name__}; it must return dpfedls.Task(data, "
            "model, test=…)"
        )
    return task
