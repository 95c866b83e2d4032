from __future__ import annotations

import gzip
import hashlib
import shutil

import numpy as np
import pytest
import torch

from dpfedls import InputError
from dpfedls.paper import street_digits
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import SOURCES
from dpfedls.tasks.pretrain import as_street_images, pretrained_cnn
from dpfedls.tasks.task import make_task


@pytest.fixture
def toy_mnist(tmp_path, monkeypatch):
    """192 images in MNIST's format, half with a bar across and half with a bar down."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DPFEDLS_DATA", str(tmp_path))
    labels = np.arange(192, dtype=np.uint8) % 2
    images = np.zeros((192, 28, 28), dtype=np.uint8)
    images[labels == 0, 10:18] = 255
    images[labels == 1, :, 10:18] = 255
    (tmp_path / "mnist").mkdir()
    for values, name in ((images, "images-idx3"), (labels, "labels-idx1")):
        header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        content = gzip.compress(header + values.tobytes())
        key = f"mnist/train-{name}-ubyte.gz"
        (tmp_path / key).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(SOURCES, key, SOURCES[key]._replace(sha256=digest))
    return images, labels


def test_the_network_is_trained_once_and_kept_and_every_run_starts_from_it(
    toy_mnist, tmp_path, monkeypatch
):
    images, labels = toy_mnist
    network = pretrained_cnn()
    with torch.no_grad():
        shown = (as_street_images(images) / 255 - 0.1307) / 0.3081
        assert (network(shown).argmax(dim=1).numpy() == labels).mean() > 0.9
    kept = list((tmp_path / "cache" / "dpfedls").iterdir())
    assert [path.suffix for path in kept] == [".safetensors"]
    shutil.rmtree(tmp_path / "mnist")  # it is never needed again
    monkeypatch.setattr(street_digits, "TEST", 20)
    monkeypatch.setattr(street_digits, "VALIDATION", 10)
    street_digits._drawn.cache_clear()
    for name, each in (("street-digits-attack", 128), ("street-digits-cnn-pretrained", 300)):
        for seed in (0, 1):
            task = make_task(name, 2, SeededStreams(seed))
            assert task.data.sizes.tolist() == [each, each]
            for mine, theirs in zip(task.model.parameters(), network.parameters(), strict=True):
                assert torch.equal(mine, theirs)
    street_digits._drawn.cache_clear()


def test_it_is_trained_on_nothing_but_mnist(toy_mnist, tmp_path):
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes() + b"more")
    with pytest.raises(InputError, match="is not the published file"):
        pretrained_cnn()
    assert not (tmp_path / "cache").exists()


def test_a_grey_image_is_framed_and_coloured_the_same_three_times():
    image = np.arange(784, dtype=np.uint8).reshape(1, 28, 28)
    (framed,) = as_street_images(image)
    assert framed.shape == (3, 32, 32)
    assert framed.dtype == torch.uint8
    for colour in framed:
        assert np.array_equal(colour[2:-2, 2:-2], image[0])
        assert int(colour.sum()) == int(image.sum(dtype=np.int64))
