"""Divide one data set among people."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpfedls.errors import InputError, require_finite
from dpfedls.people.clients import ClientData


def iid(
    features: Tensor, targets: Tensor, num_clients: int, rng: np.random.Generator
) -> ClientData:
    """Shuffle, then deal out in equal shares; sizes differ by at most one."""
    bounds = _shares(len(targets), num_clients)
    order = torch.from_numpy(rng.permutation(len(targets)))
    return ClientData(features[order], targets[order], bounds[:-1], np.diff(bounds))


def dirichlet(
    features: Tensor,
    targets: Tensor,
    num_clients: int,
    concentration: float,
    rng: np.random.Generator,
) -> ClientData:
    """Labels by preference: each client draws how much of every class it has, then its samples.

    Proportions come from a symmetric Dirichlet distribution; the smaller its concentration, the
    fewer classes a client has. Sizes differ by at most one and every sample has one owner, so
    clients choose one after another among the classes that are left, and the last take what there
    is (the rule of Hsu, Qi and Brown 2019).
    """
    require_finite("concentration", concentration, "1 is every mix of classes alike")
    bounds = _shares(len(targets), num_clients)
    classes, labels = np.unique(targets.numpy(), return_inverse=True)
    stock = [rng.permutation(np.flatnonzero(labels == k)) for k in range(len(classes))]
    left = np.array([len(rows) for rows in stock])
    order = []
    for size in np.diff(bounds):
        preferred = rng.dirichlet(np.full(len(classes), concentration))
        while size:
            there = np.where(left > 0, preferred, 0)
            there = there / there.sum() if there.any() else left / left.sum()
            taken = np.minimum(rng.multinomial(size, there), left)
            order += [stock[k][n - t : n] for k, (n, t) in enumerate(zip(left, taken, strict=True))]
            left, size = left - taken, size - taken.sum()
    rows = torch.from_numpy(np.concatenate(order))
    return ClientData(features[rows], targets[rows], bounds[:-1], np.diff(bounds))


def natural(features: Tensor, targets: Tensor, owners: np.ndarray) -> ClientData:
    """One client for each distinct name in ``owners``, which has one for every sample."""
    if len(owners) != len(targets):
        raise InputError(
            f"there are {len(owners)} owners for {len(targets)} samples; name one for every sample"
        )
    return ClientData.from_arrays(features, targets, owners)


def held_out(
    people: int, num_clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who is trained on, who validates and who tests: numbers of people, drawn at random.

    Nobody is in two of them. Those who are not trained on, a tenth of the people at least, are
    halved; so a test says how a model serves people it has never seen.
    """
    most = people - max(2, people // 10)
    if num_clients > most:
        raise InputError(
            f"plan.num_clients = {num_clients}, but of {people} people a tenth is kept to test the "
            f"model on, who must not be trained on; use at most {most}"
        )
    order = rng.permutation(people)
    middle = num_clients + (people - num_clients) // 2
    trained, validate, test = np.split(order, [num_clients, middle])
    return np.sort(trained), np.sort(validate), np.sort(test)


def _shares(samples: int, num_clients: int) -> np.ndarray:
    """Where each client's share begins and ends when all are equal to within one sample."""
    if num_clients > samples:
        raise InputError(
            f"plan.num_clients = {num_clients}, but the data set has {samples} samples to deal "
            f"out, so someone would have none; use at most {samples} clients"
        )
    return np.linspace(0, samples, num_clients + 1).astype(np.int64)
