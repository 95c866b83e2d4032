"""A task: people's data, a model to train on it, and samples to judge it by."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfedls.clients import ClientData
from dpfedls.errors import unknown
from dpfedls.randomness import SeededStreams


@dataclass(frozen=True)
class Task:
    """What is trained on what, and what the server holds itself, which is nobody's secret."""

    data: ClientData
    model: nn.Module
    test: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor] | None = None  # to choose settings by; not every task has it


TaskMaker = Callable[[int, SeededStreams], Task]

# By name, not imported: a task's packages are loaded when it is asked for.
_TASKS = {
    "digits-logistic": "dpfedls.tasks.digits:make",
    "mnist-logistic": "dpfedls.tasks.mnist:make",
    "mnist-logistic-dirichlet": "dpfedls.tasks.mnist:make_dirichlet",
    "mnist5k-logistic": "dpfedls.tasks.mnist5k:make",
    "shakespeare-lstm": "dpfedls.tasks.shakespeare:make",
    "street-digits-attack": "dpfedls.paper.street_digits:make_attack",
    "street-digits-cnn": "dpfedls.paper.street_digits:make",
    "street-digits-cnn-pretrained": "dpfedls.paper.street_digits:make_pretrained",
    "svhn-attack": "dpfedls.tasks.svhn:make_attack",
    "svhn-cnn": "dpfedls.tasks.svhn:make",
    "svhn-cnn-scratch": "dpfedls.tasks.svhn:make_scratch",
    "svhn5k-cnn": "dpfedls.tasks.svhn:make_small",
    "synthetic-logistic": "dpfedls.tasks.synthetic:make",
}


def make_task(name: str, num_clients: int, streams: SeededStreams) -> Task:
    """The task of that name, its samples divided among ``num_clients`` people."""
    if name not in _TASKS:
        raise unknown("task", name, _TASKS)
    with torch.random.fork_rng(devices=[]):  # initial weights follow the run's seed, not torch's
        torch.manual_seed(streams.torch_generator("model").initial_seed())
        module, maker = _TASKS[name].split(":")
        make: TaskMaker = getattr(importlib.import_module(module), maker)
        return make(num_clients, streams)
