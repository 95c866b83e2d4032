"""Tasks for foreign.py that a stranger tried: rare classes, small inputs, weights, many columns.

Each showed a fault in what ε alone chose; docs/results/rules.md says which, and how it was mended,
so the rules fit these tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import foreign_tasks
import numpy as np
import torch
from raw_tasks import published
from torch import Tensor, nn

from dpfedls import Task

_task, _equal, log_loss = foreign_tasks._task, foreign_tasks._equal, foreign_tasks.log_loss
HELD = 6000  # samples to validate and to test on


def _mlp(inputs: int, outputs: int, hidden: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _floats(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def _payments(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Nine standardised columns, and whether it was fraud: 1 in 20, not told by the columns."""
    x = rng.normal(size=(rows, 9))
    night = rng.random(rows) < 0.25
    score = 1.6 * x[:, 0] + 1.6 * night + 2 * x[:, 2] - 1.4 * x[:, 3] - 6.2
    x[:, 1] = (night - 0.25) / 0.43
    return x, (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int64)


def fraud(rng: np.random.Generator) -> Task:
    """5 % of 5,000 people with one row each are of a class that columns tell in part, MLP."""
    x, y = _payments(rng, 5000 + HELD)
    return _task(_floats(x), torch.from_numpy(y), _equal(5000, 1), _mlp(9, 2))


def fraud_raw(rng: np.random.Generator) -> Task:
    """The same for 20,000 people, amounts in cents and hours of the day, one output, MLP."""
    x, y = _payments(rng, 20_000 + HELD)
    x[:, 0], x[:, 1] = np.exp(8 + 1.2 * x[:, 0]), 12 + 5 * x[:, 1]
    return _task(_floats(x), torch.from_numpy(y), _equal(20_000, 1), _mlp(9, 1), loss=log_loss)


def moons(rng: np.random.Generator) -> Task:
    """scikit-learn's two moons, 20,000 people of one row, an MLP of tanh."""
    from sklearn.datasets import make_moons

    x, y = make_moons(20_000 + HELD, noise=0.25, random_state=int(rng.integers(2**31)))
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    return _task(_floats(x), torch.from_numpy(y), _equal(20_000, 1), net)


def sentences(rng: np.random.Generator) -> Task:
    """Like embeddings of sentences: norm 1, 128 columns, 15 classes; 1,000 people of 5, MLP."""
    labels = rng.integers(15, size=5000 + HELD)
    common, centres = 1.5 * rng.normal(size=128), 0.8 * rng.normal(size=(15, 128))
    x = common + centres[labels] + 1.3 * rng.normal(size=(len(labels), 128))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return _task(_floats(x), torch.from_numpy(labels), _equal(1000, 5), _mlp(128, 15, 64))


def weighted(rng: np.random.Generator) -> Task:
    """Cross-entropy with weights inverse to how frequent 4 classes are; 1,000 people of 10, MLP."""
    shares = np.array([0.7, 0.2, 0.07, 0.03])
    labels = rng.choice(4, 10_000 + HELD, p=shares)
    x = 0.7 * rng.normal(size=(4, 15))[labels] + rng.normal(size=(len(labels), 15))
    loss = nn.CrossEntropyLoss(weight=_floats(0.25 / shares), reduction="none")
    return _task(_floats(x), torch.from_numpy(labels), _equal(1000, 10), _mlp(15, 4), loss=loss)


def word_counts(rng: np.random.Generator) -> Task:
    """Counts of 400 words, 20 topics; 2,000 people of 8 texts in two topics, linear."""
    topics = rng.lognormal(0, 1, (20, 400)) / np.arange(1, 401)
    topics /= topics.sum(axis=1, keepdims=True)
    own = rng.integers(20, size=(2000, 2))[
        np.repeat(np.arange(2000), 8), rng.integers(2, size=16_000)
    ]
    labels = np.concatenate([own, rng.integers(20, size=HELD)])
    x = rng.poisson(topics[labels] * rng.integers(20, 150, len(labels))[:, None])
    return _task(_floats(x), torch.from_numpy(labels), _equal(2000, 8), nn.Linear(400, 20))


def nine_tenths(rng: np.random.Generator) -> Task:
    """The 0.9 quantile of a target whose spread varies; 500 people of 20 rows, MLP."""
    x = rng.normal(size=(10_000 + HELD, 6))
    y = 10 + 3 * x[:, 0] + 2 * np.exp(0.5 * x[:, 1]) * rng.normal(size=len(x))

    def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
        missing = targets - outputs[:, 0]
        return torch.maximum(0.9 * missing, -0.1 * missing)

    return _task(_floats(x), _floats(y), _equal(500, 20), _mlp(6, 1), loss=pinball)


def faces(rng: np.random.Generator) -> Task:
    """40 generated faces of 12×12 smooth pixels, 0.5 ± 0.12; 1,000 people of 20, MLP."""
    labels = rng.integers(40, size=20_000 + HELD)
    basis = rng.normal(size=(30, 12, 12)).cumsum(1).cumsum(2)
    basis /= basis.std(axis=(1, 2), keepdims=True)
    mixed = rng.normal(size=(40, 30))[labels] + 0.7 * rng.normal(size=(len(labels), 30))
    x = 1 / (1 + np.exp(-mixed @ basis.reshape(30, -1) / 5))
    x += 0.05 * rng.normal(size=x.shape)
    return _task(_floats(x), torch.from_numpy(labels), _equal(1000, 20), _mlp(144, 40, 64))


def sigmoids(rng: np.random.Generator) -> Task:
    """Five classes by 20 columns, a mix of their own each; 250 people of 40, MLP of sigmoids."""
    centres = 0.9 * rng.normal(size=(5, 4, 20))
    mixes = [rng.dirichlet(0.6 * np.ones(5)) for _ in range(250 + HELD // 20)]
    rows = [40] * 250 + [20] * (HELD // 20)
    y = np.concatenate([rng.choice(5, n, p=mix) for n, mix in zip(rows, mixes, strict=True)])
    x = centres[y, rng.integers(4, size=len(y))] + rng.normal(size=(len(y), 20))
    net = nn.Sequential(
        nn.Linear(20, 50), nn.Sigmoid(), nn.Linear(50, 50), nn.Sigmoid(), nn.Linear(50, 5)
    )
    return _task(_floats(x), torch.from_numpy(y), _equal(250, 40), net)


def odd_units(rng: np.random.Generator) -> Task:
    """Year, price, place, age, tax in their units, three classes; 20,000 people of one row, MLP."""
    first, last = rng.normal(size=(8, 6)), rng.normal(size=(6, 3))
    middle = np.array([1985, 2.5e5, 47, 8, 110, 4, 45, 1800.0])
    spread = np.array([18, 9e4, 0.8, 1.1, 40, 1.4, 16, 700.0])
    z = rng.normal(size=(20_000 + HELD, 8))
    scores = 1.5 * np.tanh(z @ first) @ last
    y = (scores + 0.5 * rng.gumbel(size=scores.shape)).argmax(axis=1)
    return _task(_floats(middle + spread * z), torch.from_numpy(y), _equal(20_000, 1), _mlp(8, 3))


def mortgages(rng: np.random.Generator) -> Task:
    """Whether a mortgage was denied (12 %), as published; 1,600 people, linear, one output."""
    x, y = published("AER", "HMDA", "deny")
    order = rng.permutation(len(y))
    labels = torch.from_numpy((y[order] == "yes").astype(np.int64))
    return _task(
        _floats(x[order]), labels, _equal(1600, 1), nn.Linear(x.shape[1], 1), loss=log_loss
    )


TASKS: dict[str, Callable[[np.random.Generator], Task]] = {
    maker.__name__: maker
    for maker in (
        *(fraud, fraud_raw, moons, sentences, weighted, word_counts, nine_tenths, faces),
        *(sigmoids, odd_units, mortgages),
    )
}
