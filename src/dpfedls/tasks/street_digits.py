"""Street digits: a generated stand-in for SVHN, coloured digits on cluttered backgrounds.

Every image is drawn from a seed: strokes of a digit, bent and coloured, between pieces of
neighbouring digits, over a shaded background with noise. It has SVHN's shapes and something of its
difficulty, but it is not SVHN, and no number measured on it is a number about SVHN.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor, nn

from dpfedls.clients import ClientData
from dpfedls.errors import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.models import Standardise, cnn
from dpfedls.tasks.partition import iid
from dpfedls.tasks.pretrain import pretrained_cnn
from dpfedls.tasks.task import Task

Images = tuple[Tensor, Tensor]  # bytes, and the digits they show
SIDE = 32
MEAN, STDDEV = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
TEST, VALIDATION = 16_000, 10_000
_MOST_CLIENTS = 100_000
_CHUNK = 2000  # images drawn from one generator: another number gives other images
_BLOCK = 100  # images whose strokes are drawn at once: few enough to stay in the processor's cache


def make(num_clients: int, streams: SeededStreams) -> Task:
    """300 images a client, as in Section 5.2; the network starts from random weights."""
    return _task(num_clients, 300, streams, cnn())


def make_pretrained(num_clients: int, streams: SeededStreams) -> Task:
    """The same, and the network starts from MNIST, as in Section 5.2."""
    return _task(num_clients, 300, streams, pretrained_cnn())


def make_attack(num_clients: int, streams: SeededStreams) -> Task:
    """128 images a client, 64,000 for 500: few enough to learn by heart (Section 5.4)."""
    return _task(num_clients, 128, streams, pretrained_cnn())


def _task(num_clients: int, each: int, streams: SeededStreams, network: nn.Sequential) -> Task:
    if num_clients > _MOST_CLIENTS:
        raise InputError(
            f"plan.num_clients = {num_clients}, but this task draws images for at most "
            f"{_MOST_CLIENTS}"
        )
    data, test, validation = _drawn(num_clients, each, streams.seed)
    return Task(data, nn.Sequential(Standardise(MEAN, STDDEV), *network), test, validation)


@functools.lru_cache(maxsize=1)  # over a minute at the paper's size, and cells of a grid share it
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
    for chunk, seed in enumerate(seeds):
        own = slice(chunk * _CHUNK, (chunk + 1) * _CHUNK)
        images[own] = (255 * _draw(digits[own], torch.Generator().manual_seed(seed))).round_()
    return images, digits


def _draw(digits: Tensor, rng: torch.Generator) -> Tensor:
    count = len(digits)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=rng)

    def digit(which: Tensor, across: Tensor) -> Tensor:
        tilt, slant, thick = uniform(-0.2, 0.2), uniform(-0.3, 0.3), uniform(1.0, 2.6)
        return _strokes(which, across, uniform(-2, 2), size, tilt, slant, thick)

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


def _strokes(
    digits: Tensor, x: Tensor, y: Tensor, size: Tensor, turn: Tensor, slant: Tensor, width: Tensor
) -> Tensor:
    """How much ink each pixel gets from the digit's strokes: 1 inside, 0 outside, soft between."""
    parts = (part.split(_BLOCK) for part in (digits, x, y, size, turn, slant, width))
    return torch.cat([_block(*block) for block in zip(*parts, strict=True)])


def _block(
    digits: Tensor, x: Tensor, y: Tensor, size: Tensor, turn: Tensor, slant: Tensor, width: Tensor
) -> Tensor:
    segments = _SEGMENTS[digits] * size[:, None, None, None]  # image, segment, end, (x, y)
    sx = segments[..., 0] + slant[:, None, None] * segments[..., 1]
    sy = segments[..., 1]
    c, s = turn.cos()[:, None, None], turn.sin()[:, None, None]
    px = c * sx - s * sy + x[:, None, None] + (SIDE - 1) / 2
    py = s * sx + c * sy + y[:, None, None] + (SIDE - 1) / 2
    grid = torch.arange(SIDE, dtype=torch.float32)
    nearest = torch.full((len(digits), SIDE, SIDE), math.inf)
    for k in range(segments.shape[1]):
        (ax, bx), (ay, by) = px[:, k].unbind(1), py[:, k].unbind(1)
        dx, dy = (bx - ax)[:, None, None], (by - ay)[:, None, None]
        gx, gy = grid[None, None, :] - ax[:, None, None], grid[None, :, None] - ay[:, None, None]
        along = ((gx * dx + gy * dy) / (dx * dx + dy * dy + 1e-9)).clamp(0, 1)
        nearest = torch.minimum(nearest, (gx - along * dx).square() + (gy - along * dy).square())
    return (width[:, None, None] + 0.5 - nearest.sqrt()).clamp(0, 1)


def _arc(
    x: float, y: float, rx: float, ry: float, begin: float, end: float
) -> list[tuple[float, float]]:
    """Points along part of an ellipse, angles in turns, y downwards."""
    steps = max(3, round(8 * abs(end - begin)))
    turns = [begin + (end - begin) * k / steps for k in range(steps + 1)]
    return [(x + rx * math.cos(2 * math.pi * t), y + ry * math.sin(2 * math.pi * t)) for t in turns]


# Each digit as one line through points, in a box one high and about 0.6 wide.
_LINES = [
    _arc(0, 0, 0.3, 0.5, 0, 1),
    [(-0.15, -0.35), (0.02, -0.5), (0.02, 0.5)],
    [*_arc(0, -0.22, 0.28, 0.28, 0.5, 1.08), (-0.3, 0.5), (0.32, 0.5)],
    [*_arc(0, -0.25, 0.25, 0.25, 0.55, 1.25), *_arc(0, 0.23, 0.29, 0.27, 0.75, 1.45)],
    [(0.14, 0.5), (0.14, -0.5), (-0.32, 0.18), (0.32, 0.18)],
    [(0.28, -0.5), (-0.22, -0.5), (-0.26, -0.08), *_arc(0, 0.18, 0.3, 0.32, 0.65, 1.42)],
    [(0.2, -0.5), (-0.12, -0.15), *_arc(0, 0.2, 0.28, 0.3, 0.55, 1.6)],
    [(-0.3, -0.5), (0.3, -0.5), (-0.08, 0.5)],
    [*_arc(0, -0.25, 0.24, 0.25, 0.25, 1.25), *_arc(0, 0.25, 0.29, 0.26, 0.75, 1.75)],
    [(-0.2, 0.5), (0.12, 0.15), *_arc(0, -0.2, 0.28, 0.3, 0.05, 1.1)],
]
_LONGEST = max(len(line) for line in _LINES)
# All digits as equally many segments: short ones end in pieces of no length.
_SEGMENTS = torch.tensor(
    [list(itertools.pairwise([*line, *[line[-1]] * (_LONGEST - len(line))])) for line in _LINES]
)
