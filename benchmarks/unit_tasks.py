"""Tasks for foreign.py whose targets have units and are learned by a network.

The rule for them was chosen on `regression`, `products` and `diabetes`, seeds 0 to 2; `thousands`
had a part in that too. `waves` had none. The learning rate was chosen again on the last four, whose
targets somebody has standardised, on `regression`, `waves` and `autoencoder`, seeds 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import foreign_tasks
import numpy as np
from exponential_tasks import _floats
from foreign_tasks import HELD, squared
from torch import nn

from dpfedls import ClientData, Task

_task, _equal = foreign_tasks._task, foreign_tasks._equal


def diabetes(rng: np.random.Generator, unit: float = 1.0) -> Task:
    """scikit-learn's diabetes data, deviation 77 around 152, an MLP; one person a row."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = rng.permutation(len(y))
    x, y = (x - x.mean(0)) / x.std(0), unit * y
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    return _task(_floats(x[order]), _floats(y[order]), _equal(312, 1), net, loss=squared)


def thousands(rng: np.random.Generator) -> Task:
    """The same with targets times 1,000."""
    return diabetes(rng, 1000.0)


def products(rng: np.random.Generator) -> Task:
    """100 + 20·(x₁ + x₂·x₃) with noise of 10, twelve columns, an MLP; 200 people of 20 rows."""
    x = rng.standard_normal((200 * 20 + 2 * HELD, 12))
    y = 100 + 20 * (x[:, 0] + x[:, 1] * x[:, 2]) + 10 * rng.standard_normal(len(x))
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
    return _task(_floats(x), _floats(y), _equal(200, 20), net, loss=squared)


def waves(rng: np.random.Generator) -> Task:
    """sin(3x₁)·x₂ + 2·abs(x₃) − x₄² and noise of 0.2, an MLP with tanh; 2,000 people of 20 rows."""
    x = rng.uniform(-1, 1, (2000 * 20 + 2 * HELD, 6))
    y = np.sin(3 * x[:, 0]) * x[:, 1] + 2 * np.abs(x[:, 2]) - x[:, 3] ** 2
    y += 0.2 * rng.standard_normal(len(x))
    hidden = [nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    model = nn.Sequential(*hidden, nn.Linear(64, 1))
    return _task(_floats(x), _floats(y), _equal(2000, 20), model, loss=squared)


def _standardised(make: Callable[[np.random.Generator], Task], rng: np.random.Generator) -> Task:
    """The task with targets of mean 0 and deviation 1, as many people give them."""
    task = make(rng)
    assert isinstance(task.data, ClientData)
    assert task.validation is not None
    assert task.test is not None
    mean, scale = task.data.targets.mean(), task.data.targets.std()
    data = replace(task.data, targets=(task.data.targets - mean) / scale)
    validation, test = ((x, (y - mean) / scale) for x, y in (task.validation, task.test))
    return replace(task, data=data, validation=validation, test=test)


def scaled_friedman(rng: np.random.Generator) -> Task:
    """Friedman's function with targets of mean 0 and deviation 1, an MLP; 500 people of 20 rows."""
    return _standardised(foreign_tasks.regression, rng)


def scaled_diabetes(rng: np.random.Generator) -> Task:
    """The diabetes data with targets of mean 0 and deviation 1; one person a row."""
    return _standardised(diabetes, rng)


def scaled_products(rng: np.random.Generator) -> Task:
    """The products with targets of mean 0 and deviation 1; 200 people of 20 rows."""
    return _standardised(products, rng)


def deep_friedman(rng: np.random.Generator) -> Task:
    """Friedman's function, scaled as above, and an MLP of five hidden layers of 64."""
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), *hidden, nn.Linear(64, 1))
    return replace(scaled_friedman(rng), model=model)


_SCALED = (scaled_friedman, scaled_diabetes, scaled_products, deep_friedman)
_ALL = (diabetes, thousands, products, waves, *_SCALED)
TASKS: dict[str, Callable[[np.random.Generator], Task]] = {maker.__name__: maker for maker in _ALL}
