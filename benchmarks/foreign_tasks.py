"""Tasks for benchmarks/foreign.py: data, models and populations that no rule was made on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls import ClientData, Task
from dpfedls.randomness import SeededStreams
from dpfedls.tasks import chitchat, insteval, mnist, shakespeare, svhn_images
from dpfedls.tasks.files import data_file
from dpfedls.tasks.reading import gunzip

Pair = tuple[Any, Tensor]
HELD = 4000  # samples to validate on, and as many to test on, where they are generated


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss in the square of the targets' unit."""
    return (outputs[:, 0] - targets).square()


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A binary classifier with one output."""
    return nn.functional.binary_cross_entropy_with_logits(
        outputs[:, 0], targets.float(), reduction="none"
    )


def _task(x: Any, y: Tensor, sizes: np.ndarray, model: nn.Module, **more: Any) -> Task:
    """The first samples belong to people, so many each; the rest is halved."""
    starts = np.cumsum(sizes) - sizes
    n = int(sizes.sum())
    middle = n + (len(y) - n) // 2
    clients = ClientData(x[:n], y[:n], starts, sizes)
    return Task(clients, model, (x[middle:], y[middle:]), (x[n:middle], y[n:middle]), **more)


def _equal(people: int, each: int) -> np.ndarray:
    return np.full(people, each)


def _table(
    samples: int, features: int, classes: int, rng: np.random.Generator, **more: Any
) -> tuple[np.ndarray, Tensor]:
    from sklearn.datasets import make_classification

    x, y = make_classification(
        samples,
        features,
        n_classes=classes,
        random_state=int(rng.integers(2**31)),
        **{"n_informative": features // 2, "n_redundant": features // 4} | more,
    )
    return x.astype(np.float32), torch.from_numpy(y).long()


def _scaled(x: np.ndarray) -> Tensor:
    return torch.from_numpy((x - x.mean(axis=0)) / x.std(axis=0))


def raw_table(rng: np.random.Generator) -> Task:
    """A linear model on 20 columns in units from 0.001 to 10,000, as they were measured."""
    x, y = _table(500 * 20 + 2 * HELD, 20, 3, rng, n_clusters_per_class=1)
    x *= (10.0 ** rng.uniform(-3, 4, 20)).astype(np.float32)
    return _task(torch.from_numpy(x), y, _equal(500, 20), nn.Linear(20, 3))


def raw_cancer(rng: np.random.Generator) -> Task:
    """Breast cancer as scikit-learn has it: 30 columns of 0.001 to 4,000; one person a row."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = rng.permutation(len(y))
    x, y = torch.from_numpy(x[order].astype(np.float32)), torch.from_numpy(y[order])
    return _task(x, y, _equal(369, 1), nn.Linear(30, 2))


def layer_norm(rng: np.random.Generator) -> Task:
    """A table of 40 columns and an MLP with LayerNorm; 500 people of 20 rows."""
    x, y = _table(500 * 20 + 2 * HELD, 40, 5, rng)
    net = nn.Sequential(nn.Linear(40, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 5))
    return _task(_scaled(x), y, _equal(500, 20), net)


def hundred_classes(rng: np.random.Generator) -> Task:
    """100 classes, tanh, and every person has seen three of them: 1,000 people of 20."""
    centres = rng.standard_normal((100, 30))
    own = np.repeat(rng.integers(100, size=(1000, 3)), 20, axis=0)
    labels = own[np.arange(len(own)), rng.integers(3, size=len(own))]
    labels = np.concatenate([labels, rng.integers(100, size=2 * HELD)])
    x = centres[labels] + 0.9 * rng.standard_normal((len(labels), 30))
    net = nn.Sequential(nn.Linear(30, 48), nn.Tanh(), nn.Linear(48, 100))
    return _task(torch.from_numpy(x).float(), torch.from_numpy(labels), _equal(1000, 20), net)


def rare(rng: np.random.Generator) -> Task:
    """One positive in twenty and a model with one output; 500 people of 20 rows."""
    x, y = _table(500 * 20 + 2 * HELD, 30, 2, rng, weights=[0.955], class_sep=1.5)
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 1))
    return _task(_scaled(x), y, _equal(500, 20), net, loss=log_loss)


def regression(rng: np.random.Generator) -> Task:
    """Friedman's first function (mean 14, deviation 5), squared loss; 500 people of 20 rows."""
    from sklearn.datasets import make_friedman1

    seed = int(rng.integers(2**31))
    x, y = make_friedman1(500 * 20 + 2 * HELD, 10, noise=1.0, random_state=seed)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    return _task(x, y, _equal(500, 20), net, loss=squared)


def large_targets(rng: np.random.Generator) -> Task:
    """Prices: a linear model of 8 columns, targets around 200,000; 500 people of 5 rows."""
    x = rng.standard_normal((500 * 5 + 2 * HELD, 8))
    y = 2e5 + 5e4 * (x @ rng.standard_normal(8)) + 5e4 * rng.standard_normal(len(x))
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    return _task(x, y, _equal(500, 5), nn.Linear(8, 1), loss=squared)


@functools.cache
def _roles(window: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Windows of 36 kinds of characters, what follows, and how many each of 500 roles has."""
    letters = "\0 abcdefghijklmnopqrstuvwxyz.,;:?!'-"
    path = data_file("shakespeare", "t8.shakespeare.txt.gz")
    said = sorted(shakespeare.speeches(gunzip(path, 2**26).decode()).values())
    order = np.random.default_rng(0).permutation(len(said))[:500]
    codes = [
        torch.tensor([max(letters.find(c), 0) for c in said[k].lower()[: 5000 + window]])
        for k in order
    ]
    codes = [code for code in codes if len(code) > window]
    x = torch.cat([code.unfold(0, window, 1)[:-1] for code in codes])
    y = torch.cat([code[window:] for code in codes])
    return x, y, np.array([len(code) - window for code in codes])


def _text(window: int, model: nn.Module, rng: np.random.Generator) -> Task:
    x, y, sizes = _roles(window)
    people = 400
    n = int(sizes[:people].sum())
    rows = torch.from_numpy(n + rng.permutation(len(y) - n)[: 2 * HELD])
    task = _task(x[:n], y[:n], sizes[:people], model)
    held = [(x[part], y[part]) for part in rows.split(HELD)]
    return Task(task.data, model, held[0], held[1])


def text_mlp(rng: np.random.Generator) -> Task:
    """Shakespeare's next letter from the last five; 400 roles of 9 to 5,000 letters."""
    net = nn.Sequential(
        nn.Embedding(36, 8), nn.Flatten(), nn.Linear(40, 64), nn.Sigmoid(), nn.Linear(64, 36)
    )
    return _text(5, net, rng)


class Transformer(nn.Module):
    """Two layers of attention over a window; the last position predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(36, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(32, 36)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, 8) letters to (samples, 36) scores."""
        return self.output(self.layers(self.letters(tokens) + self.places)[:, -1])


def text_transformer(rng: np.random.Generator) -> Task:
    """The same from the last eight, by a transformer of two layers."""
    return _text(8, Transformer(), rng)


class MeanOfWords(nn.Module):
    """Embedding, mean over the words, linear."""

    def __init__(self, words: int, topics: int) -> None:
        super().__init__()
        self.words, self.topics = nn.Embedding(words, 16), nn.Linear(16, topics)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, words) to (samples, topics)."""
        return self.topics(self.words(tokens).mean(dim=1))


def topics(rng: np.random.Generator) -> Task:
    """Documents of 30 words out of 1,000, frequent ones most often; 8 topics; 500 people of 10."""
    often = 1 / np.arange(1, 1001)
    of = often * rng.gamma(0.3, size=(8, 1000))
    of /= of.sum(axis=1, keepdims=True)
    labels = rng.integers(8, size=500 * 10 + 2 * HELD)
    words = np.stack([rng.choice(1000, 30, p=of[k]) for k in labels])
    x, y = torch.from_numpy(words), torch.from_numpy(labels)
    return _task(x, y, _equal(500, 10), MeanOfWords(1000, 8))


def street_cnn(rng: np.random.Generator) -> Task:
    """SVHN in grey, 16×16, and a CNN with GroupNorm: 500 people of 50 images."""
    (x, y), (test_x, test_y) = svhn_images.read("train"), svhn_images.read("test")
    rows = torch.from_numpy(rng.permutation(len(y))[: 500 * 50])
    held = torch.from_numpy(rng.permutation(len(test_y))[: 2 * HELD])
    x = torch.cat([_grey(x[rows]), _grey(test_x[held])])
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 16, 10),
    )  # fmt: skip
    return _task(x, torch.cat([y[rows], test_y[held]]), _equal(500, 50), net)


def _grey(images: Tensor) -> Tensor:
    grey = images.float().mean(dim=1, keepdim=True) / 255
    return (nn.functional.avg_pool2d(grey, 2) - 0.45) / 0.2


def unequal(rng: np.random.Generator) -> Task:
    """300 people with 1 to 5,000 rows of 50 columns, 10 classes, a linear model begun at zero."""
    sizes = np.exp(rng.uniform(0, np.log(5000), 300)).astype(np.int64)
    x, y = _table(int(sizes.sum()) + 2 * HELD, 50, 10, rng)
    net = nn.Linear(50, 10)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return _task(_scaled(x), y, sizes, net)


def _small_mnist(rng: np.random.Generator, people: int, each: int) -> tuple[Tensor, Tensor]:
    """MNIST at 14×14, standardised, in random order; the last 2 · HELD are test images."""
    (x, y), (test_x, test_y) = mnist.read("train"), mnist.read("t10k")
    rows = torch.from_numpy(rng.permutation(len(y))[: people * each])
    held = torch.from_numpy(rng.permutation(len(test_y))[: 2 * HELD])
    x = torch.cat([x[rows], test_x[held]]).unflatten(1, (28, 28))
    return nn.functional.avg_pool2d(x, 2).flatten(1), torch.cat([y[rows], test_y[held]])


def pixels(rng: np.random.Generator, most: float = 1.0) -> Task:
    """MNIST at 14×14 with pixels from 0 to 1, an MLP; 500 people of 20 images."""
    x, y = _small_mnist(rng, 500, 20)
    x = (x - x.min()) / (x.max() - x.min()) * most
    net = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    return _task(x, y, _equal(500, 20), net)


def bytes_(rng: np.random.Generator) -> Task:
    """The same with pixels from 0 to 255, as they are stored."""
    return pixels(rng, 255.0)


def deep(rng: np.random.Generator) -> Task:
    """MNIST at 14×14 and an MLP of six layers; 500 people of 20 images."""
    widths = [196, 32, 32, 32, 32, 32]
    pairs = itertools.pairwise(widths)
    hidden = [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*hidden, nn.Linear(32, 10))
    return _task(*_small_mnist(rng, 500, 20), _equal(500, 20), net)


def pretrained(rng: np.random.Generator) -> Task:
    """An MLP that knows 85 % of MNIST at 14×14 already, from 500 images; 500 people of 40."""
    x, y = _small_mnist(rng, 500, 41)
    net = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[:500]), y[:500]).backward()
        optimiser.step()
    return _task(x[500:], y[500:], _equal(500, 40), net)


def few_people(rng: np.random.Generator) -> Task:
    """200 people of 15 rows of 16 columns, 4 classes, an MLP with tanh."""
    x, y = _table(200 * 15 + 2 * HELD, 16, 4, rng, n_clusters_per_class=1)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    return _task(_scaled(x), y, _equal(200, 15), net)


def many_people(rng: np.random.Generator) -> Task:
    """20,000 people of 3 rows of 40 columns, 6 classes, an MLP."""
    x, y = _table(20000 * 3 + 2 * HELD, 40, 6, rng)
    net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 6))
    return _task(_scaled(x), y, _equal(20000, 3), net)


def most_people(rng: np.random.Generator) -> Task:
    """100,000 people with one row of 40 columns each, 6 classes, a linear model."""
    x, y = _table(100000 + 2 * HELD, 40, 6, rng, n_clusters_per_class=1)
    return _task(_scaled(x), y, _equal(100000, 1), nn.Linear(40, 6))


def lectures(rng: np.random.Generator) -> Task:
    """InstEval: 2,600 students with 1 to 92 ratings, an MLP."""
    return insteval.make(2600, SeededStreams(int(rng.integers(2**31))))


def chats(rng: np.random.Generator) -> Task:
    """Chit-Chat: 1,100 people with 1 to 200 characters, embedding and MLP."""
    return chitchat.make(1100, SeededStreams(int(rng.integers(2**31))))


_ALL = (
    raw_table, raw_cancer, layer_norm, hundred_classes, rare, regression, large_targets, text_mlp,
    text_transformer, topics, street_cnn, unequal, pixels, bytes_, deep, pretrained, few_people,
    many_people, most_people, lectures, chats,
)  # fmt: skip
TASKS: dict[str, Callable[[np.random.Generator], Task]] = {maker.__name__: maker for maker in _ALL}
