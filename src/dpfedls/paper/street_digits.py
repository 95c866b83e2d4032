"""Street digits: a generated stand-in for SVHN, coloured digits on cluttered backgrounds.

Every image is drawn from a seed: strokes of a digit, bent and coloured, between pieces of
neighbouring digits, over a shaded background with noise. It has SVHN's shapes and something of its
difficulty, but it is not SVHN, and no number measured on it is a number about SVHN.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from dpfedls.engine.threads import one_torch_thread, usual_threads
from dpfedls.errors import InputError
from dpfedls.paper import strokes
from dpfedls.paper.strokes import SIDE
from dpfedls.people.clients import ClientData
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.models import Standardise, cnn
from dpfedls.tasks.partition import iid
from dpfedls.tasks.pretrain import pretrained_cnn
from dpfedls.tasks.task import Task

Images = tuple[Tensor, Tensor]  # bytes, and the digits they show
MEAN, STDDEV = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
TEST, VALIDATION = 16_000, 10_000
_MOST_CLIENTS = 100_000
_CHUNK = 2000  # images drawn from one generator: another number gives other images
_MOST_THREADS = 16  # each takes 150 MB for its chunk


def make(num_clients: int, streams: SeededStreams) -> Task:
    """300 images a client, as in Section 6.2; the network starts from random weights."""
    return _task(num_clients, 300, streams, cnn())


def make_pretrained(num_clients: int, streams: SeededStreams) -> Task:
    """The same, and the network starts from MNIST, as in Section 6.2."""
    return _task(num_clients, 300, streams, pretrained_cnn())


def make_attack(num_clients: int, streams: SeededStreams) -> Task:
    """128 images a client, 64,000 for 500: few enough to learn by heart (Section 6.4)."""
    return _task(num_clients, 128, streams, pretrained_cnn())


def _task(num_clients: int, each: int, streams: SeededStreams, network: nn.Sequential) -> Task:
    if num_clients > _MOST_CLIENTS:
        raise InputError(
            f"plan.num_clients = {num_clients}, but this task draws images for at most "
            f"{_MOST_CLIENTS}"
        )
    data, test, validation = _drawn(num_clients, each, streams.seed)
    return Task(data, nn.Sequential(Standardise(MEAN, STDDEV), *network), test, validation)


@functools.lru_cache(maxsize=1)  # 20 s on two cores at the paper's size; cells of a grid share it
def _drawn(num_clients: int, each: int, seed: int) -> tuple[ClientData, Images, Images]:
    streams = SeededStreams(seed)
    rng = streams.torch_generator("split")
    data = iid(*draw(each * num_clients, rng), num_clients, streams.generator("partition"))
    return data, draw(TEST, rng), draw(VALIDATION, rng)


def draw(count: int, rng: torch.Generator) -> Images:
    """So many images (3×32×32 bytes) and their digits."""
    digits = torch.randint(10, (count,), generator=rng)
    images = torch.empty(count, 3, SIDE, SIDE, dtype=torch.uint8)
    seeds = torch.randint(2**31, (-(-count // _CHUNK),), generator=rng).tolist()

    def fill(chunk: int) -> None:
        own, seed = slice(chunk * _CHUNK, (chunk + 1) * _CHUNK), seeds[chunk]
        images[own] = (255 * _draw(digits[own], torch.Generator().manual_seed(seed))).round_()

    with one_torch_thread(), ThreadPoolExecutor(min(usual_threads(), _MOST_THREADS)) as pool:
        list(pool.map(fill, range(len(seeds))))  # an error in one is raised here
    return images, digits


def _draw(digits: Tensor, rng: torch.Generator) -> Tensor:
    count = len(digits)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=rng)

    def digit(which: Tensor, across: Tensor) -> Tensor:
        tilt, slant, thick = uniform(-0.2, 0.2), uniform(-0.3, 0.3), uniform(1.0, 2.6)
        return strokes.ink(which, across, uniform(-2, 2), size, tilt, slant, thick)

    # Ink: the digit itself in the middle, and pieces of others reaching in from both sides.
    size = uniform(15.0, 24.0)
    ink = digit(digits, uniform(-2.5, 2.5))
    for side in (-1, 1):
        other = torch.randint(10, (count,), generator=rng)
        beside = digit(other, side * size * uniform(0.65, 0.95))
        ink = torch.maximum(ink, beside * (uniform(0, 1) < 0.7)[:, None, None])
    # Paper: one colour, shaded across; ink in another colour that stands off it.
    paper, pen = uniform(0, 1, 3), uniform(0, 1, 3)
    contrast = (pen - paper).mean(dim=1, keepdim=True)
    pen = (pen + torch.sign(contrast) * (0.35 - contrast.abs()).clamp(min=0)).clamp(0, 1)
    axis = torch.linspace(-1, 1, SIDE)
    angle = uniform(0, 2 * math.pi)[:, None, None]
    shade = angle.cos() * axis[None, None, :] + angle.sin() * axis[None, :, None]
    background = paper[:, :, None, None] + uniform(-0.3, 0.3)[:, None, None, None] * shade[:, None]
    image = background + ink[:, None] * (pen[:, :, None, None] - background)
    grain = uniform(0.01, 0.1)[:, None, None, None] * torch.randn(image.shape, generator=rng)
    return (image + grain).clamp(0, 1)
