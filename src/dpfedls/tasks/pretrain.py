"""The paper's CNN, trained beforehand on MNIST (Section 6.2).

MNIST is public here: nobody whose privacy is promised is in it, so this costs no privacy. It is
done once and kept in the cache folder: every run starts from the same weights, whatever its seed.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dpfedls.tasks.files import SOURCES, cache_folder, keep, published_file
from dpfedls.tasks.mnist import MEAN, STDDEV, names, read_idx
from dpfedls.tasks.models import Standardise, cnn

_FILES = names("train")
_IMAGES = 20_000  # of the 60,000, one pass: two or three minutes on a processor, seconds on a GPU
_BATCH, _RATE, _MOMENTUM, _SEED = 64, 0.05, 0.9, 0


def pretrained_cnn() -> nn.Sequential:
    """The CNN with weights that it learned on MNIST; the first call ever trains it."""
    network = cnn()
    path = cache_folder() / f"cnn-mnist-{_key()}.safetensors"
    if path.is_file():
        network.load_state_dict(load_file(path))
        return network
    images, digits = (read_idx(published_file("mnist", name)) for name in _FILES)
    print("training the CNN on MNIST, once; this takes minutes", file=sys.stderr, flush=True)
    network = trained(as_street_images(images), torch.from_numpy(digits.astype(np.int64)))
    keep(path, save(network.state_dict()))
    return network


def as_street_images(images: np.ndarray) -> Tensor:
    """Grey 28×28 bytes as 3×32×32: a black frame of two pixels, and three equal colours."""
    framed = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    return torch.from_numpy(framed)[:, None].expand(-1, 3, -1, -1)


def trained(images: Tensor, digits: Tensor) -> nn.Sequential:
    """A new CNN after one pass of plain SGD, on the GPU if there is one; returned on the CPU.

    First weights and order are fixed, and on one kind of GPU the sums; rounding is the machine's.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = cnn()
        order = torch.randperm(len(digits))[:_IMAGES]
    model = nn.Sequential(Standardise((MEAN,) * 3, (STDDEV,) * 3), network).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM)
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        for batch in order.split(_BATCH):
            optimizer.zero_grad()
            outputs = model(images[batch].to(device))
            nn.functional.cross_entropy(outputs, digits[batch].to(device)).backward()
            optimizer.step()
    return network.cpu()


def _key() -> str:
    """Eight hex digits of what the weights follow from, apart from rounding."""
    data = [SOURCES[f"mnist/{name}"].sha256 for name in _FILES]
    shapes = [tuple(p.shape) for p in cnn().parameters()]
    made_of = (data, shapes, MEAN, STDDEV, _IMAGES, _BATCH, _RATE, _MOMENTUM, _SEED)
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:8]
