"""Where the files of a data set are: in the folder a user keeps, or fetched once into a cache."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias
from zipfile import BadZipFile

import numpy as np

from dpfedls.errors import InputError

log = logging.getLogger("dpfedls")
Arrays: TypeAlias = dict[str, np.ndarray]


class Source(NamedTuple):
    """Where a file is published, and what its bytes must be."""

    url: str
    sha256: str


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_SVHN = "https://ufldl.stanford.edu/housenumbers"
_SHAKESPEARE = (
    "https://raw.githubusercontent.com/peryaudo/misc/48bc4c2635f7908f77951eea82ca82a7b676e63e"
)

SOURCES = {
    "mnist/train-images-idx3-ubyte.gz": Source(
        f"{_MNIST}/train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "mnist/train-labels-idx1-ubyte.gz": Source(
        f"{_MNIST}/train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "mnist/t10k-images-idx3-ubyte.gz": Source(
        f"{_MNIST}/t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": Source(
        f"{_MNIST}/t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "svhn/train_32x32.mat": Source(
        f"{_SVHN}/train_32x32.mat",
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    "svhn/test_32x32.mat": Source(
        f"{_SVHN}/test_32x32.mat",
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
    "svhn/extra_32x32.mat": Source(
        f"{_SVHN}/extra_32x32.mat",
        "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
    ),
    "shakespeare/t8.shakespeare.txt.gz": Source(
        f"{_SHAKESPEARE}/t8.shakespeare.txt.gz",
        "c08816978371a5ebe4ae6ebd8bbc0b65ae35e591b006fb464702506681e927c7",
    ),
}

_TIMEOUT = 30  # seconds without a byte
_PART = 2**20  # bytes read at a time


def data_file(data_set: str, name: str) -> Path:
    """The path of a data set's file: under DPFEDLS_DATA, or else in the cache, fetched if need be.

    Nothing is ever downloaded into a folder that a user keeps.
    """
    key = f"{data_set}/{name}"
    kept = os.environ.get("DPFEDLS_DATA")
    path = data_folder() / key
    if path.is_file():
        return path
    source = SOURCES.get(key)
    if kept:
        origin = f" (from {source.url})" if source else ""
        raise InputError(
            f"{path} is not there; put it there{origin}, or set DPFEDLS_DATA to the folder that "
            f"holds {key}"
        )
    if source is None:
        raise InputError(
            f"{key} cannot be downloaded; put it at {path}, or set "
            f"DPFEDLS_DATA to the folder that holds {data_set}/"
        )
    fetch(source, path)
    return path


def data_folder() -> Path:
    """What holds a folder for each data set."""
    kept = os.environ.get("DPFEDLS_DATA")
    return Path(kept) if kept else cache_folder()


def published_file(data_set: str, name: str) -> Path:
    """The path of a data set's file, refused if it is not the published one byte for byte."""
    path, source = data_file(data_set, name), SOURCES[f"{data_set}/{name}"]
    if hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
        raise InputError(
            f"{path} is not the published file; what is made from it would be called {data_set}'s: "
            f"replace it by {source.url}"
        )
    return path


def fetch(source: Source, path: Path) -> None:
    """Download a file: it is at ``path`` whole and as it was published, or not at all."""
    digest, done = hashlib.sha256(), 0
    try:
        with (
            replacing(path) as temporary,
            urllib.request.urlopen(source.url, timeout=_TIMEOUT) as reply,
            temporary.open("wb") as file,
        ):
            total = int(reply.headers.get("Content-Length") or 0)
            print(f"downloading {source.url} to {path}", file=sys.stderr, flush=True)
            while part := reply.read(_PART):
                file.write(part)
                digest.update(part)
                done += len(part)
                _show(done, total)
            if done < total:
                raise OSError(f"the transfer broke off after {done} of {total} bytes")
            if digest.hexdigest() != source.sha256:
                raise OSError(f"its SHA-256 is {digest.hexdigest()}, not {source.sha256}")
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{source.url} could not be downloaded ({error}); put the file at {path}, or set "
            "DPFEDLS_DATA to a folder that holds it"
        ) from error


def _show(done: int, total: int) -> None:
    """One line that a terminal shows grow; elsewhere only where it ends."""
    if sys.stderr.isatty() or done == total:
        end = "\n" if done == total else "\r"
        print(f"  {done / 1e6:.1f} of {total / 1e6:.1f} MB", end=end, file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Where what was fetched or computed once is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpfedls"


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache, whole; where that is not possible, say so and go on without."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        _say_not_kept(path, error)


def once(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """Arrays that take long to make: made the first time, then read from this file of the cache."""
    if path.is_file():
        try:
            with np.load(path) as file:
                return dict(file)
        except (OSError, EOFError, ValueError, BadZipFile) as error:
            log.warning("%s cannot be read (%s); it is made again", path, error)
    made = make()
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **made)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        _say_not_kept(path, error)
    return made


def _say_not_kept(path: Path, error: OSError) -> None:
    log.warning("%s cannot be kept (%s); it is made again every time", path, error)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place, or vanishes if anything goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
