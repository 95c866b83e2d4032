"""Tasks for foreign.py whose loss has an exponential, made when the rule for it stood."""

from __future__ import annotations

from collections.abc import Callable

import foreign_tasks
import numpy as np
import torch
from foreign_tasks import HELD
from held_tasks import poisson
from torch import Tensor, nn

from dpfedls import Task

_task, _equal = foreign_tasks._task, foreign_tasks._equal


def _floats(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x.astype(np.float32))


def habits(rng: np.random.Generator) -> Task:
    """Counts of mean 5 by 15 columns and a factor of each person; 500 people of 20 rows, an MLP."""
    x = rng.standard_normal((500 * 20 + 2 * HELD, 15))
    own = np.concatenate([np.repeat(rng.normal(0, 0.7, 500), 20), rng.normal(0, 0.7, 2 * HELD)])
    bent = np.tanh(x @ rng.normal(0, 0.5, (15, 4))) @ rng.normal(0, 0.5, 4)
    y = rng.poisson(np.exp(1 + own + bent))
    net = nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 1))
    return _task(_floats(x), _floats(y), _equal(500, 20), net, loss=poisson)


def accidents(rng: np.random.Generator) -> Task:
    """Counts of mean 0.15, mostly zero, by 10 columns; 2,000 people of 3 rows, linear."""
    x = rng.standard_normal((2000 * 3 + 2 * HELD, 10))
    y = rng.poisson(np.exp(-2.2 + x @ rng.normal(0, 0.25, 10)))
    return _task(_floats(x), _floats(y), _equal(2000, 3), nn.Linear(10, 1), loss=poisson)


def times(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log likelihood of an exponential time whose mean's logarithm is the output."""
    return targets * (-outputs[:, 0]).exp() + outputs[:, 0]


def waiting(rng: np.random.Generator) -> Task:
    """Times of mean 2.7, mostly short, by 12 columns; 1,000 people of 10 rows, linear."""
    x = rng.standard_normal((1000 * 10 + 2 * HELD, 12))
    y = rng.exponential(np.exp(0.7 + x @ rng.normal(0, 0.25, 12)))
    return _task(_floats(x), _floats(y), _equal(1000, 10), nn.Linear(12, 1), loss=times)


def bell(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log likelihood of a normal value; outputs are its mean and its log variance."""
    mean, log_variance = outputs.T
    return 0.5 * (log_variance + (targets - mean).square() * (-log_variance).exp())


def spread(rng: np.random.Generator) -> Task:
    """A value and how sure it is, both by 10 columns; 500 people of 20 rows, an MLP with tanh."""
    x = rng.standard_normal((500 * 20 + 2 * HELD, 10))
    mean, width = x @ rng.normal(0, 0.4, 10), np.exp(x @ rng.normal(0, 0.25, 10) - 0.5)
    y = mean + width * rng.standard_normal(len(x))
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 2))
    return _task(_floats(x), _floats(y), _equal(500, 20), net, loss=bell)


def claims(rng: np.random.Generator) -> Task:
    """Counts of mean 0.85 in 0.1 to 1 years by 8 columns; 3,000 people of 4 rows, an MLP."""
    x = rng.standard_normal((3000 * 4 + 2 * HELD, 8))
    years = rng.uniform(0.1, 1, len(x))
    y = rng.poisson(years * np.exp(-0.7 + np.abs(x[:, 0]) - 0.5 * x[:, 1] * x[:, 2]))
    net = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 1))
    x = np.concatenate([x, np.log(years)[:, None]], axis=1)
    return _task(_floats(x), _floats(y), _equal(3000, 4), net, loss=poisson)


def weibull(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log likelihood of a Weibull time of shape 1.5, whose scale's logarithm it is."""
    away = 1.5 * (targets.clamp(min=1e-6).log() - outputs[:, 0])
    return away.exp() - away


def lifetimes(rng: np.random.Generator) -> Task:
    """Times of a Weibull law by 20 columns; 1,000 people of 8 rows, linear."""
    x = rng.standard_normal((1000 * 8 + 2 * HELD, 20))
    y = np.exp(1 + x @ rng.normal(0, 0.2, 20)) * rng.weibull(1.5, len(x))
    return _task(_floats(x), _floats(y), _equal(1000, 8), nn.Linear(20, 1), loss=weibull)


_ALL = (habits, accidents, waiting, spread, claims, lifetimes)
TASKS: dict[str, Callable[[np.random.Generator], Task]] = {maker.__name__: maker for maker in _ALL}
