from __future__ import annotations

import gzip

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from dpfedls import InputError
from dpfedls.tasks.mnist import read_idx
from dpfedls.tasks.reading import gunzip, reading, require_unpacked


def load_npz(path):
    with np.load(path) as file:
        return file["X"]


def make(path):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    if path.suffix == ".gz":
        header = bytes([0, 0, 8, 3]) + np.array(images.shape, dtype=">i4").tobytes()
        path.write_bytes(gzip.compress(header + images.tobytes()))
    elif path.suffix == ".mat":
        savemat(path, {"X": images})
    else:
        np.savez(path, X=images)


@pytest.mark.parametrize(
    ("name", "read"), [("a.gz", read_idx), ("a.mat", loadmat), ("a.npz", load_npz)]
)
def test_a_file_cut_anywhere_is_named_in_one_line(name, read, tmp_path):
    path = tmp_path / name
    make(path)
    whole = path.read_bytes()
    with reading(path):
        read(path)
    for share in (0.0, 0.01, 0.1, 0.5, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        with (
            pytest.raises(InputError, match=f"{name} is damaged or cut short") as caught,
            reading(path),
        ):
            read(path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).count("cut short") == 1


def test_an_idx_file_with_too_few_bytes_inside_is_named(tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 9]) + bytes(5)))
    with pytest.raises(InputError, match="is damaged or cut short"):
        read_idx(path)


def test_a_file_that_unpacks_to_gigabytes_is_refused(tmp_path):
    """A megabyte of zeros, packed a thousandfold; the bound of the real reader is far higher."""
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(2**20)))
    assert len(path.read_bytes()) < 2**11
    with pytest.raises(InputError, match="unpacks to more than 1000 bytes") as caught:
        gunzip(path, 1000)
    assert "\n" not in str(caught.value)
    assert len(gunzip(path, 2**20)) == 2**20
    np.savez_compressed(tmp_path / "bomb.npz", y=np.zeros(10**6, dtype=np.uint8))
    with pytest.raises(InputError, match="unpacks to more than"):
        require_unpacked(tmp_path / "bomb.npz", 10**5)
    require_unpacked(tmp_path / "bomb.npz", 2 * 10**6)
