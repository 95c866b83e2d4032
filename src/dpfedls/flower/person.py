"""One person's part in a round, made from that person's data and public values alone.

Whether, how and on what a person trains must not depend on anybody else: otherwise one person's
data would decide whether others count, and could move the sum by many clip norms. So each person
is loaded, checked and trained alone, and whatever fails fails for that person.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from dpfedls.clipping import Bound
from dpfedls.engine import choose
from dpfedls.parameters import Total, Vector
from dpfedls.people.checks import check_samples
from dpfedls.people.clients import ClientData
from dpfedls.people.grouping import counted
from dpfedls.people.losses import Loss
from dpfedls.people.samples import Samples, as_input, as_samples, each, select
from dpfedls.people.tables import collated
from dpfedls.runs.recipe import Recipe


def contribution(
    recipe: Recipe,
    model: nn.Module,
    loss: Loss,
    samples: Samples,
    person: int,
    params: Vector,
    round_: int,
    key: int,
    bound: Bound,
) -> Total:
    """The clipped update of one person, in float64, and the indicator where the norm adapts."""
    features, targets = each(lambda values: values.to(params.device), samples)
    starts, sizes = np.zeros((2, recipe.plan.num_clients), dtype=np.int64)
    sizes[person] = len(targets)  # batches follow the person's number in the population
    data = ClientData(features, targets, starts, sizes)
    engine = choose(model, data, recipe.local, loss, engine=recipe.engine, block_size=1)
    return engine.clipped_total(params, np.array([person]), round_, key, bound)


def load(given: Any, person: int, most: int, seed: int) -> Samples:
    """At most ``most`` of the samples of a pair, or of a torch Dataset; chosen before any is read.

    The choice is a function of the seed, the person and how many samples the person has, and the
    one that a simulation makes of people who are labelled by their numbers.
    """
    where = f"person {person}"
    if isinstance(given, Dataset):
        places = counted(person, len(given), most, seed)  # pyright: ignore[reportArgumentType]
        given = collated([given[i] for i in places.tolist()], where)
    features, targets = as_samples(given, where)
    rows = torch.from_numpy(counted(person, len(targets), most, seed))
    if len(rows) < len(targets):
        features = each(lambda values: select(values, rows), features)
        targets = select(targets, rows)
    return each(as_input, features), as_input(targets)


def checked(
    recipe: Recipe, model: nn.Module, loss: Loss, given: Any, person: int, most: int
) -> Samples:
    """The person's samples, once it is seen that the model can learn from them."""
    samples = load(given, person, most, recipe.seed)
    check_samples(model, samples, f"person {person}", loss)
    return samples
