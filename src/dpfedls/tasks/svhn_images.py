"""SVHN's images from the official .mat files, or from sheets: many images in a lossless picture.

The sheets hold train and test, rebuilt from the photographs; extra is in .mat files alone. Decoding
takes seconds, and a grid has hundreds of runs: what came out is kept in the cache folder.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from dpfedls.errors import InputError
from dpfedls.tasks.files import Arrays, cache_folder, data_file, data_folder, once
from dpfedls.tasks.reading import require_unpacked

SIDE, _IN_A_ROW = 32, 80
_LABELS = 2**26  # bytes: several times the labels of all parts

# Of the pixels of all sheets as one array (n, 32, 32, 3): decoders and files are both held to it.
PIXELS = {
    "train": "4686a783b9e858b4eeb0231d7180073c2fd2450b80354e095ab54333d1d794f5",
    "test": "7cdf621ad945e1526d37b39f7d5aefc012f29fb2b12f3fa8fb6924a385ab006a",
}
# How often each digit from 0 to 9 is there, as published.
COUNTS = {
    "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
}


def read(part: str) -> tuple[Tensor, Tensor]:
    """Images as bytes of shape (n, 3, 32, 32) and labels, of the part train, extra or test."""
    mat = data_folder() / "svhn" / _mat(part)
    sheets = () if mat.is_file() else _sheets(part)
    if sheets:
        return _from_sheets(part, sheets, data_file("svhn", f"{part}-labels.npz"))
    return _from_mat(data_file("svhn", _mat(part)))


def _mat(part: str) -> str:
    return f"{part}_32x32.mat"


def _sheets(part: str) -> tuple[Path, ...]:
    return tuple(sorted((data_folder() / "svhn").glob(f"{part}-[0-9][0-9].webp")))


@functools.cache  # a grid makes the same task many times in one process
def _from_mat(path: Path) -> tuple[Tensor, Tensor]:
    def parsed() -> Arrays:
        from scipy.io import loadmat

        try:
            content = loadmat(path)
            labels = content["y"].reshape(-1) % 10  # the files write 0 as 10
            return {"images": content["X"].transpose(3, 2, 0, 1), "labels": labels}
        except Exception as error:  # scipy's errors of a broken file are of many kinds
            raise InputError(
                f"{path} cannot be read as one of SVHN's files ({type(error).__name__}: {error}); "
                "copy it anew"
            ) from error

    state = path.stat()  # another file at the same place is another name in the cache
    of = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
    return _tensors(once(_cached(path.stem, hashlib.sha256(of.encode()).hexdigest()), parsed))


@functools.cache
def _from_sheets(part: str, sheets: tuple[Path, ...], labels: Path) -> tuple[Tensor, Tensor]:
    def decoded() -> Arrays:
        digits = _digits(labels)
        counts = tuple(np.bincount(digits, minlength=10).tolist())
        if counts != COUNTS[part]:
            raise InputError(
                f"{labels} has {counts} of the digits 0 to 9, not SVHN's {COUNTS[part]}; what is "
                "trained on it would be called SVHN's: copy the file anew"
            )
        images = np.concatenate([_decode(sheet) for sheet in sheets])[: len(digits)]
        if hashlib.sha256(images.data).hexdigest() != PIXELS[part]:
            raise InputError(
                f"the {len(sheets)} sheets {sheets[0].parent}/{part}-*.webp are not SVHN's "
                f"{len(digits)} images, pixel by pixel; what is trained on them would be called "
                "SVHN's: copy them anew, all of them"
            )
        return {"images": images.transpose(0, 3, 1, 2), "labels": digits}

    return _tensors(once(_cached(f"svhn-{part}", PIXELS[part]), decoded))


def _digits(labels: Path) -> np.ndarray:
    try:
        require_unpacked(labels, _LABELS)
        with np.load(labels) as file:
            return file["y"]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, MemoryError) as error:
        raise InputError(
            f"{labels} cannot be read ({type(error).__name__}), and without labels images are of "
            "no use: copy the file anew"
        ) from error


def _decode(sheet: Path) -> np.ndarray:
    """The images of a sheet, row by row, the black ones that fill its last row included."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            "SVHN's sheets are webp pictures, and the package pillow that reads them is not "
            "installed; run: pip install 'dpfedls[svhn]'"
        ) from error
    try:
        with Image.open(sheet) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except Exception as error:  # a picture of too many pixels is no OSError to Pillow
        raise InputError(f"{sheet} cannot be decoded ({error}); copy the file anew") from error
    if pixels.shape[0] % SIDE or pixels.shape[1] != _IN_A_ROW * SIDE:
        raise InputError(
            f"{sheet} is {pixels.shape[1]} pixels wide and {pixels.shape[0]} high, and not rows of "
            f"{_IN_A_ROW} images of {SIDE}×{SIDE}, so they cannot be told apart: copy it anew"
        )
    rows = pixels.reshape(-1, SIDE, _IN_A_ROW, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return rows.reshape(-1, SIDE, SIDE, 3)


def _cached(name: str, digest: str) -> Path:
    return cache_folder() / f"{name}-{digest[:12]}.npz"


def _tensors(arrays: Arrays) -> tuple[Tensor, Tensor]:
    images, labels = np.ascontiguousarray(arrays["images"]), arrays["labels"].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels)
