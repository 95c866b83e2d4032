"""Machine code against its slow twin: any model it takes on, it trains as plain torch would."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numba import types
from torch import Tensor, nn

from dpfedls.engine import jit as jit_module
from dpfedls.engine.compiled import NotCompiled, program
from dpfedls.engine.compiled import update as update_module
from dpfedls.engine.compiled.activations import logistic
from dpfedls.engine.compiled.exponential import exponential
from dpfedls.engine.compiled.recognition import program_of
from dpfedls.engine.compiled.training import loss_gradient
from dpfedls.engine.compiled.update import CompiledUpdate, compiled_update
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.tasks.models import (
    GRU,
    LSTM,
    LastPosition,
    PositionEmbedding,
    Residual,
    Standardise,
    character_lstm,
    cnn,
)

SIZES = np.array([7, 1, 0, 12, 7, 5])  # batches of 5: short ones, a lone sample, nobody's
CLIP = 0.4
EVERYONE = np.array([3, 0, 2, 1, 5, 4])


def _pixels(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def _letters(alphabet: int, positions: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(alphabet, (count, positions), dtype=torch.uint8)


def _images(net: nn.Module, flat: int) -> nn.Module:
    return nn.Sequential(net, nn.Flatten(), nn.Linear(flat, 3))


def _between(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))


def _encoder_layer(wide: int, heads: int, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(wide, heads, 9, 0.0, batch_first=True, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def _drawn(layer: nn.Module) -> nn.Module:
    """With weights drawn at random, since scales of 1 and shifts of 0 would hide mistakes."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


# model and features; all have three classes
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "linear": (lambda: nn.Linear(6, 3), _pixels(6)),
    "one output, odd width": (lambda: nn.Sequential(nn.Linear(7, 1), nn.Linear(1, 3)), _pixels(7)),
    "no bias": (
        lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)),
        _pixels(6),
    ),
    "nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Identity(), nn.Linear(6, 9), nn.ReLU(inplace=True)), nn.Linear(9, 3)
        ),
        _pixels(6),
    ),
    "more weights than are stepped at once": (
        lambda: nn.Sequential(nn.Linear(600, 70), nn.ReLU(), nn.Linear(70, 3)),
        _pixels(600),
    ),
    "flattened images": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 3)),
        _pixels(2, 3, 4),
    ),
    "bytes": (
        lambda: nn.Sequential(Standardise((0.5,), (0.2,)), nn.Flatten(), nn.Linear(16, 3)),
        lambda count: torch.randint(256, (count, 1, 4, 4), dtype=torch.uint8),
    ),
    "gelu": (lambda: _between(nn.GELU()), _pixels(6)),
    "gelu by tanh": (lambda: _between(nn.GELU("tanh")), _pixels(6)),
    "silu": (lambda: _between(nn.SiLU()), _pixels(6)),
    "leaky relu": (lambda: _between(nn.LeakyReLU(0.2)), _pixels(6)),
    "elu": (lambda: _between(nn.ELU(0.7)), _pixels(6)),
    "sigmoid": (lambda: _between(nn.Sigmoid()), _pixels(6)),
    "softplus": (lambda: _between(nn.Softplus(2.0, 1.5)), _pixels(6)),
    "no dropout": (lambda: _between(nn.Dropout(0.0)), _pixels(6)),
    "activation first": (lambda: nn.Sequential(nn.GELU(), nn.Linear(6, 3)), _pixels(6)),
    "layer norm": (lambda: _between(_drawn(nn.LayerNorm(8))), _pixels(6)),
    "layer norm without weights": (
        lambda: _between(nn.LayerNorm(8, elementwise_affine=False)),
        _pixels(6),
    ),
    "layer norm first, without bias": (
        lambda: nn.Sequential(_drawn(nn.LayerNorm(6, bias=False)), nn.Linear(6, 3)),
        _pixels(6),
    ),
    "layer norm of images": (
        lambda: _images(nn.Sequential(nn.Conv2d(2, 3, 2), _drawn(nn.LayerNorm((4, 5)))), 60),
        _pixels(2, 5, 6),
    ),
    "linear on the last dimension": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)),
        _pixels(3, 4),
    ),
    "residual": (
        lambda: _between(Residual(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8)), nn.Tanh()),
        _pixels(6),
    ),
    "residual first, and inside another": (
        lambda: nn.Sequential(
            Residual(nn.Linear(6, 6), Residual(nn.Tanh(), nn.Linear(6, 6)), nn.GELU()),
            Residual(),
            nn.Linear(6, 3),
        ),
        _pixels(6),
    ),
    "residual images with group norm": (
        lambda: _images(
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding="same"),
                Residual(
                    _drawn(nn.GroupNorm(2, 4)), nn.SiLU(), nn.Conv2d(4, 4, 3, padding=1, bias=False)
                ),
                nn.AdaptiveAvgPool2d(1),
            ),
            4,
        ),
        _pixels(2, 5, 6),
    ),
    "convolution": (lambda: _images(nn.Conv2d(2, 4, 3, padding=1), 4 * 30), _pixels(2, 5, 6)),
    "kernels and margins that are not square": (
        lambda: _images(
            nn.Sequential(
                nn.Conv2d(2, 3, (3, 1), padding=(2, 0), bias=False),
                nn.Tanh(),
                nn.Conv2d(3, 5, (2, 4), padding=(0, 3)),
            ),
            5 * 6 * 9,
        ),
        _pixels(2, 5, 6),
    ),
    "strides": (
        lambda: _images(
            nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 3, (1, 2), (1, 2))), 9
        ),
        _pixels(2, 5, 6),
    ),
    "dilation, groups, even kernels": (
        lambda: _images(
            nn.Sequential(
                nn.Conv2d(2, 4, 3, dilation=2, padding=(3, 2), bias=False),
                nn.Conv2d(4, 6, (2, 4), padding="same", groups=2),
                nn.Conv2d(6, 2, 1, padding=1),
            ),
            2 * 9 * 8,
        ),
        _pixels(2, 5, 6),
    ),
    "pooling first": (
        lambda: _images(nn.Sequential(nn.MaxPool2d(3), nn.Conv2d(2, 3, 2)), 3),
        _pixels(2, 6, 6),
    ),
    "pooling with overlaps, margins and a rest": (
        lambda: _images(
            nn.Sequential(
                nn.Conv2d(2, 3, 2),
                nn.ReLU(),
                nn.MaxPool2d(3, 2, 1),
                nn.Conv2d(3, 3, 1),
                nn.AvgPool2d(2, 1, 1),
                nn.AvgPool2d((2, 3), 2),
            ),
            3 * 2 * 1,
        ),
        _pixels(2, 6, 7),
    ),
    "lines of numbers": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding="same"), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(4, 4, 2, stride=2, padding=1, dilation=2, groups=2), nn.AvgPool1d(2, 1, 1),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
        _pixels(2, 13),
    ),
    "the paper's network, thin": (
        lambda: nn.Sequential(*cnn(1 / 16)[:-1], nn.Linear(12, 3)),
        _pixels(3, 32, 32),
    ),
    "GRU of two layers": (
        lambda: nn.Sequential(nn.Embedding(5, 3), GRU(3, 20, 2), LastPosition(), nn.Linear(20, 3)),
        _letters(5, 6),
    ),
    "numbers through a GRU, all positions used": (
        lambda: nn.Sequential(GRU(4, 5), nn.Flatten(), nn.Linear(15, 3)),
        _pixels(3, 4),
    ),
    "LSTM": (
        lambda: nn.Sequential(nn.Embedding(5, 3), LSTM(3, 4), LastPosition(), nn.Linear(4, 3)),
        _letters(5, 7),
    ),
    "text of one letter": (
        lambda: nn.Sequential(nn.Embedding(5, 3), LSTM(3, 40), LastPosition(), nn.Linear(40, 3)),
        _letters(5, 1),
    ),
    "two layers of it": (
        lambda: nn.Sequential(*character_lstm(9, 2, 11, 2)[:-1], nn.Linear(11, 3)),
        _letters(9, 6),
    ),
    "numbers through an LSTM, all positions used": (
        lambda: nn.Sequential(
            LSTM(4, 5), _drawn(nn.LayerNorm(5)), Residual(nn.Linear(5, 5)), nn.Flatten(),
            nn.Linear(15, 3),
        ),
        _pixels(3, 4),
    ),
    "a window of tokens": (
        lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.GELU(), nn.Linear(12, 3)),
        _letters(5, 4),
    ),
    "transformer of two layers": (
        lambda: nn.Sequential(
            nn.Embedding(5, 12), PositionEmbedding(7, 12),
            nn.TransformerEncoder(_encoder_layer(12, 4), 2, nn.LayerNorm(12), False),
            LastPosition(), nn.Linear(12, 3),
        ),
        _letters(5, 7),
    ),
    "transformer of numbers, norms first": (
        lambda: nn.Sequential(
            PositionEmbedding(4, 6),
            _encoder_layer(6, 2, activation="gelu", norm_first=True, bias=False),
            _encoder_layer(6, 1, activation=nn.SiLU()), nn.Flatten(), nn.Linear(24, 3),
        ),
        _pixels(4, 6),
    ),
    "attention of one position": (
        lambda: nn.Sequential(_encoder_layer(6, 6), nn.Flatten(), nn.Linear(6, 3)),
        _pixels(1, 6),
    ),
    "the last of some numbers": (
        lambda: nn.Sequential(nn.Linear(4, 5), LastPosition(), nn.Linear(5, 3)),
        _pixels(3, 4),
    ),
}  # fmt: skip
LOCAL = LocalSGD(epochs=3, batch_size=5, learning_rate=0.5, decay=0.9, weight_decay=0.01)


def federation(name: str) -> tuple[nn.Module, Layout, ClientData]:
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, count = make(), int(SIZES.sum())
    targets = torch.randint(3, (count,))
    return model, Layout.of(model), ClientData(draw(count), targets, SIZES.cumsum() - SIZES, SIZES)


def machine_code(
    model: nn.Module, data: Any, local: LocalSGD = LOCAL, loss: Loss = cross_entropy
) -> CompiledUpdate:
    return compiled_update(model, loss, Layout.of(model), data, local)


def slow_twin(
    model: nn.Module, data: ClientData, local: LocalSGD, clients: np.ndarray, radius: float = CLIP
) -> Tensor:
    layout = Layout.of(model)
    twin = LoopedUpdate(model, cross_entropy, layout, data, local)
    return twin(layout.read(model), clients, 2, 7, radius)


def updates(
    model: nn.Module, data: Any, local: LocalSGD, clients: np.ndarray, radius: float = CLIP
) -> Tensor:
    return machine_code(model, data, local)(Layout.of(model).read(model), clients, 2, 7, radius)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "local",
    [LOCAL, replace(LOCAL, epochs=None, steps=4, projection="final")],
    ids=["epochs, projected", "steps, not projected"],
)
def test_it_trains_as_the_slow_twin_does(name, local):
    model, _, data = federation(name)
    expected = slow_twin(model, data, local, EVERYONE)
    found = updates(model, data, local, EVERYONE)
    assert expected[1].norm() > 0.05  # somebody learned something
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=4e-6)
    assert not found[2].any()  # who has no samples moves nothing


ACTIVATIONS = [
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, nn.Softplus,
    lambda: nn.GELU("tanh"), lambda: nn.Dropout(0.0), nn.Identity,
]  # fmt: skip


@st.composite
def dense_layers(draw: st.DrawFn, wide: int, depth: int = 2) -> tuple[list[nn.Module], int]:
    """A random chain of dense layers for inputs of this width, and the width behind it."""
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["linear", "activation", "norm", "residual"]))
        if kind == "linear":
            after = draw(st.integers(1, 9))
            layers.append(nn.Linear(wide, after, bias=draw(st.booleans())))
            wide = after
        elif kind == "activation":
            layers.append(draw(st.sampled_from(ACTIVATIONS))())
        elif kind == "norm" and wide > 1:  # a lone number has no variance
            layers.append(nn.LayerNorm(wide, elementwise_affine=draw(st.booleans())))
        elif kind == "residual" and depth:
            body, after = draw(dense_layers(wide, depth - 1))
            layers.append(Residual(*body, nn.Linear(after, wide)))
    return layers, wide


@st.composite
def image_layers(draw: st.DrawFn, shape: tuple[int, int, int]) -> tuple[list[nn.Module], int]:
    """A random chain of layers for such images, and how many numbers leave it."""
    layers: list[nn.Module] = []
    channels, height, width = shape
    side = st.integers(1, 3)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["convolution", "max", "mean", "norm", "activation"]))
        if kind == "convolution":
            groups = draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
            layer: nn.Module = nn.Conv2d(
                channels, 2 * draw(side), (draw(side), draw(side)), stride=(draw(side), draw(side)),
                padding=(draw(side) - 1, draw(side) - 1), dilation=draw(st.integers(1, 2)),
                groups=groups, bias=draw(st.booleans()),
            )  # fmt: skip
        elif kind in ("max", "mean"):
            size = (draw(side), draw(side))
            padding = (size[0] // 2, size[1] // 2)  # torch allows no more
            make = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
            layer = make(size, (draw(side), draw(side)), draw(st.sampled_from([0, padding])))
        elif kind == "norm" and height * width * channels > 2:
            layer = nn.GroupNorm(draw(st.sampled_from([1, channels // 2])) or 1, channels)
        else:
            layer = draw(st.sampled_from(ACTIVATIONS))()
        try:
            with torch.no_grad():
                made = layer(torch.zeros(1, channels, height, width))
        except (RuntimeError, ValueError):  # kernels larger than what is left of the image
            continue
        layers.append(layer)
        _, channels, height, width = made.shape
    return layers, channels * height * width


def _agree(model: nn.Module, shape: tuple[int, ...], batch: int) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    pairs = [(torch.randn(n, *shape), torch.randint(3, (n,))) for n in (4, 1, 0)]
    data, local = ClientData.from_pairs(pairs), LocalSGD(epochs=2, batch_size=batch)
    expected = slow_twin(model, data, local, np.arange(3))
    found = updates(model, data, local, np.arange(3))
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-5)


@settings(max_examples=40)
@given(st.data(), st.integers(1, 7), st.integers(1, 5), st.integers(0, 2**31))
def test_random_chains_of_dense_layers_train_as_the_slow_twin_does(data, wide, batch, seed):
    torch.manual_seed(seed)
    layers, after = data.draw(dense_layers(wide))
    _agree(nn.Sequential(*layers, nn.Linear(after, 3)), (wide,), batch)


@settings(max_examples=40)
@given(
    st.data(),
    st.tuples(*[st.integers(1, 7)] * 2),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**31),
)
def test_random_chains_of_image_layers_train_as_the_slow_twin_does(data, side, channels, seed):
    torch.manual_seed(seed)
    layers, after = data.draw(image_layers((channels, *side)))
    _agree(nn.Sequential(*layers, nn.Flatten(), nn.Linear(after, 3)), (channels, *side), 3)


def test_the_radius_is_that_of_the_call_and_counts_only_for_projection_by_step():
    model, _, data = federation("linear")
    for radius in (0.1, 0.7):
        found = updates(model, data, LOCAL, EVERYONE, radius)
        torch.testing.assert_close(found, slow_twin(model, data, LOCAL, EVERYONE, radius))
        assert found.norm(dim=1).max() == pytest.approx(radius, rel=1e-5)
    final = replace(LOCAL, projection="final")
    free = updates(model, data, final, EVERYONE, 0.1)
    assert free.norm(dim=1).max() > 0.7
    assert torch.equal(free, updates(model, data, final, EVERYONE, 5.0))


@pytest.mark.parametrize("classes", [3, 10, 20])
def test_an_update_is_the_same_to_the_last_bit_whoever_trains_beside_it(classes):
    """In other blocks and orders, in one thread and two, in memory that lies elsewhere."""
    torch.manual_seed(0)
    body = nn.Linear(5, 5), nn.GELU(), nn.LayerNorm(5)
    model = nn.Sequential(nn.Linear(16, 5), nn.SiLU(), Residual(*body), nn.Linear(5, classes))
    pairs = [(torch.randn(n, 16), torch.randint(classes, (n,))) for n in SIZES]
    data, found = ClientData.from_pairs(pairs), []
    for threads, block in (
        (2, [0, 1, 2, 3, 4, 5]),
        (1, [5, 3]),
        (1, [3]),
        (2, [3, 0]),
        (3, [4, 3]),
    ):
        update = machine_code(model, data)
        update.threads = threads
        lost = [np.empty(n + 7) for n in range(block[0], 40)]  # memory is taken elsewhere each time
        params = Layout.of(model).read(model)
        found.append(update(params, np.array(block), 0, 7, CLIP)[block.index(3)])
        del lost
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", ["one output, odd width", "layer norm", "residual", "strides"])
def test_how_many_samples_others_have_does_not_move_a_bit(name):
    """Memory is sized for the largest client; how far arrays lie apart must not show in numbers."""
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model, one = make(), (draw(1), torch.zeros(1).long())
    found = set()
    for size in range(40):
        other = (draw(size), torch.zeros(size).long())
        data, local = ClientData.from_pairs([one, other]), replace(LOCAL, batch_size=40)
        found.add(updates(model, data, local, np.array([0])).numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("classes", range(1, 60, 3))
def test_the_gradient_of_the_loss_does_not_depend_on_where_memory_was_free(classes):
    rng = np.random.default_rng(classes)
    memory, scores = np.empty(1000, np.float32), rng.normal(size=classes).astype(np.float32)
    found = set()
    for gap in range(0, 300, 2):
        own, out = memory[:classes], memory[classes + gap : 2 * classes + gap]
        own[:] = scores
        loss_gradient(own, np.zeros(1, np.int64), out)
        found.add(out.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", ["linear", "convolution", "residual images with group norm"])
def test_nothing_of_one_person_reaches_anothers_update(name):
    model, layout, data = federation(name)
    params = layout.read(model)
    before = machine_code(model, data)
    data.features[data.starts[3] : data.starts[3] + data.sizes[3]] = torch.nan
    after = machine_code(model, data)
    found = after(params, np.arange(6), 0, 7, CLIP)
    assert found[3].isnan().any()  # NaN is not lost on the way either
    others = [0, 1, 2, 4, 5]
    data.features.nan_to_num_(0.0)
    assert torch.equal(before(params, np.arange(6), 0, 7, CLIP)[others], found[others])


@pytest.mark.parametrize("first", [nn.MaxPool2d(2), nn.AvgPool2d(2), nn.GroupNorm(1, 1)])
def test_not_a_number_survives(first):
    """In pooling it stands before larger pixels of its tile, and must not be forgotten for them."""
    features = torch.ones(1, 1, 4, 4)
    features[0, 0, 0, 0] = torch.nan
    data = ClientData.from_pairs([(features, torch.zeros(1).long())])
    model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3))
    model(features)
    found = updates(model, data, LOCAL, np.array([0]))
    expected = slow_twin(model, data, LOCAL, np.array([0]))
    assert found.isnan().any()
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("make", ACTIVATIONS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
def test_what_no_number_becomes_is_what_torch_makes_of_it(make, value):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), make(), nn.Linear(4, 3))
    data = ClientData.from_pairs([(torch.tensor([[value]]), torch.zeros(1).long())])
    local = LocalSGD(steps=1, learning_rate=0.1, projection="final")
    found = updates(model, data, local, np.array([0]))
    expected = slow_twin(model, data, local, np.array([0]))
    assert torch.equal(found.isfinite(), expected.isfinite())


def test_the_written_out_exponential_is_exact_to_a_few_units_in_the_last_place():
    at = np.concatenate([np.linspace(-86, 87, 20_001), np.linspace(-1, 1, 2001)]).astype(np.float32)
    exact = at.astype(np.float64)
    np.testing.assert_allclose([exponential(x) for x in at], np.exp(exact), rtol=3e-7)
    np.testing.assert_allclose([logistic(x) for x in at], 1 / (1 + np.exp(-exact)), rtol=5e-7)
    ends = [logistic(np.float32(x)) for x in (-1e30, -np.inf, 1e30, np.inf)]
    np.testing.assert_allclose(ends, [0, 0, 1, 1], atol=1e-37)
    assert np.isnan(logistic(np.float32(np.nan)))


def test_a_threads_arrays_lie_apart_in_the_same_way_wherever_memory_was_free():
    wanted = ((7,), np.float32), ((3, 5), np.int64), ((1,), np.int32)
    ways, kept = set(), []
    for size in (1, 100, 5000):
        kept.append(np.empty(size))  # so that the next piece lies elsewhere
        arrays = update_module._apart(*wanted)
        starts = [array.ctypes.data for array in arrays]
        ends = [array.ctypes.data + array.nbytes for array in arrays[:-1]]
        assert min(b - a for a, b in zip(ends, starts[1:], strict=True)) >= 4096
        ways.add((starts[0] % 64, starts[1] - starts[0], starts[2] - starts[0]))
    assert len(ways) == 1


class Doubled(nn.Linear):
    def forward(self, input):  # noqa: A002 - torch's name
        return 2 * super().forward(input)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    model.register_forward_hook(lambda *_: None)
    return model


def heard_backwards() -> nn.Module:
    model = _between(Residual(nn.Linear(8, 8)))
    model[1].body.register_full_backward_hook(lambda *_: None)
    return model


def with_a_forward_of_its_own() -> nn.Module:
    model = nn.Linear(6, 3)
    model.forward = lambda x: 2 * nn.Linear.forward(model, x)
    return model


def with_another_weight() -> nn.Module:
    model = nn.Linear(6, 3)
    model.weight = nn.Parameter(torch.randn(1, 6))  # torch adds three biases to one score
    return model


def shared() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))


def on_images(layer: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (lambda: Doubled(6, 3), (6,), r"the model itself \(Doubled\) has no compiled form"),
        (
            lambda: _between(nn.Sequential(nn.ReLU(), nn.Hardswish())),
            (6,),
            r"layer '1\.1' \(Hardswish\) has no compiled form",
        ),
        (
            lambda: _between(Residual(nn.Linear(8, 8), nn.Mish())),
            (6,),
            r"layer '1\.body\.1' \(Mish\) has no compiled form",
        ),
        (lambda: _between(nn.Dropout(0.1)), (6,), r"'1' \(Dropout\) has p = 0.1; only p = 0"),
        (frozen, (6,), r"layer '0' \(Linear\) is frozen"),
        (hooked, (6,), r"the model itself \(Sequential\) has a hook"),
        (heard_backwards, (6,), r"layer '1.body' \(Sequential\) has a hook"),
        (with_a_forward_of_its_own, (6,), "has a forward of its own"),
        (with_another_weight, (6,), r"has tensors .*\(1, 6\).* options ask for .*\(3, 6\)"),
        (shared, (6,), r"layer '2' \(Linear\) .*shares its weights"),
        (lambda: nn.Linear(6, 3), (2, 6), r"gives \(2, 3\) per sample, not one row of scores"),
        (lambda: nn.Linear(6, 3), (5,), r"takes 6 inputs, but is given \(5,\)"),
        (
            on_images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")),
            (2, 6, 6),
            "padding_mode 'circular'",
        ),
        (on_images(nn.MaxPool2d(4, ceil_mode=True)), (2, 6, 6), "ceil_mode"),
        (on_images(nn.MaxPool2d(2, dilation=2)), (2, 6, 6), "dilation"),
        (
            on_images(nn.AvgPool2d(2, padding=1, count_include_pad=False)),
            (2, 6, 6),
            "count_include_pad=False",
        ),
        (on_images(nn.AdaptiveAvgPool2d(4)), (2, 6, 6), "unlike sizes"),
        (lambda: nn.Conv1d(2, 3, 2), (2, 6, 6), r"takes lines of numbers, but is given \(2, 6"),
        (lambda: nn.Sequential(nn.Flatten(2), nn.Linear(6, 3)), (2, 6), "flattens other"),
        (
            lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 9, batch_first=True)),
            (4, 6),
            r"layer '0' \(TransformerEncoderLayer\) has dropout",
        ),
        (
            lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 9, 0.0)),
            (4, 6),
            r"layer '0.self_attn' \(MultiheadAttention\) has batch_first=False",
        ),
        (
            lambda: nn.Sequential(Residual(nn.Linear(2, 1)), nn.Linear(2, 3)),
            (2,),
            r"layer '0' \(Residual\) adds \(1,\) to \(2,\)",
        ),
        (nn.ReLU, (3,), "nothing to train"),
    ],
)
def test_what_it_does_not_know_is_left_to_torch_by_name(make, shape, reason):
    model = make()
    features = torch.randn(4, *shape)
    if any(isinstance(layer, nn.LazyLinear) for layer in model.modules()):
        model(features)
    data = ClientData.from_pairs([(features, torch.zeros(4, dtype=torch.long))])
    with pytest.raises(NotCompiled, match=reason) as caught:
        machine_code(model, data)
    assert "\n" not in str(caught.value)


def test_other_losses_precisions_and_targets_are_left_to_torch():
    model, _, data = federation("linear")

    def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets[:, None]).abs().sum(1)

    with pytest.raises(NotCompiled, match="precision 'bfloat16'"):
        machine_code(model, data, replace(LOCAL, precision="bfloat16"))
    with pytest.raises(NotCompiled, match="the loss 'absolute'"):
        machine_code(model, data, loss=absolute)
    with pytest.raises(NotCompiled, match="whole-number label"):
        machine_code(model, ClientData.from_pairs([(torch.randn(4, 6), torch.rand(4, 3))]))


@pytest.mark.parametrize(
    ("model", "features", "reason"),
    [
        (nn.Linear(6, 3), torch.ones(4, 6).long(), "given whole numbers"),
        (Residual(nn.Linear(6, 6)), torch.ones(4, 6).long(), "given whole numbers"),
        (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3)), torch.ones(4, 6).long(), "one row of"),
        (
            nn.Sequential(nn.Embedding(5, 3, padding_idx=1), LSTM(3, 4), LastPosition()),
            torch.ones(4, 6).long(),
            "padding_idx",
        ),
        (nn.Sequential(nn.Embedding(5, 3), LSTM(4, 4)), torch.ones(4, 6).long(), "takes 4 numbers"),
        (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3)), torch.ones(4, 6), "row of tokens"),
    ],
)
def test_tokens_and_numbers_do_not_mix(model, features, reason):
    data = ClientData.from_pairs([(features, torch.zeros(4).long())])
    with pytest.raises(NotCompiled, match=reason):
        machine_code(model, data)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_of_no_width_are_left_to_torch():
    model = nn.Sequential(nn.Linear(6, 0), nn.Linear(0, 3))
    data = ClientData.from_pairs([(torch.randn(4, 6), torch.zeros(4).long())])
    with pytest.raises(NotCompiled, match="no width"):
        machine_code(model, data)


@pytest.mark.parametrize("wrong", ["label", "label to be left out", "token"])
def test_what_is_no_place_in_memory_is_refused(wrong):
    """Machine code would read or write there; a layer before it may have made the token."""
    model, layout, data = federation("LSTM")
    if wrong == "token":
        data.features[3] = 5
    else:
        data.targets[3] = 3 if wrong == "label" else -100
    update = machine_code(model, data)
    with pytest.raises(InputError, match="client 0 has a label beyond the model's 3 outputs, or"):
        update(layout.read(model), np.arange(6), 0, 7, CLIP)


def test_no_more_samples_are_prepared_than_are_seen():
    seen = []

    class Counted(Standardise):
        def forward(self, images):
            seen.append(len(images))
            return super().forward(images)

    model = nn.Sequential(Counted((0.5,), (0.2,)), nn.Flatten(), nn.Linear(16, 3))
    pair = (torch.randint(256, (1000, 1, 4, 4), dtype=torch.uint8), torch.randint(3, (1000,)))
    data, local = ClientData.from_pairs([pair]), LocalSGD(steps=2, batch_size=4)
    found = updates(model, data, local, np.array([0]))
    assert seen[-1] == 8
    expected = slow_twin(model, data, local, np.array([0]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


@dataclass(frozen=True)
class Scattered(ClientData):
    """People's samples anywhere: client j owns the rows ``order[start : start + size]``."""

    order: Any = None

    def __post_init__(self) -> None:
        """Arrays may stand in for tensors."""

    def client(self, j: int) -> tuple[Tensor, Tensor]:
        own = self.order[self.starts[j] : self.starts[j] + self.sizes[j]]
        return torch.as_tensor(self.features[own]), torch.as_tensor(self.targets[own])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("steps", [None, 1])
def test_samples_may_lie_anywhere_and_in_any_precision(kind, steps, tmp_path):
    rng = np.random.default_rng(0)
    order, starts = rng.permutation(32), SIZES.cumsum() - SIZES
    mapped = np.memmap(tmp_path / "features", kind, "w+", shape=(32, 6))
    mapped[:] = rng.normal(size=(32, 6))
    mapped.flush()
    features = np.memmap(tmp_path / "features", kind, "r", shape=(32, 6))
    targets = rng.integers(3, size=32).astype(np.uint8)
    plain = ClientData(
        torch.from_numpy(features[order].astype(np.float32)),
        torch.from_numpy(targets[order]),
        starts,
        SIZES,
    )
    local = LOCAL if steps is None else replace(LOCAL, epochs=None, steps=steps)
    model = _between(nn.ReLU())
    found = updates(model, Scattered(features, targets, starts, SIZES, order), local, EVERYONE)
    assert torch.equal(found, updates(model, plain, local, EVERYONE))


def test_only_the_layers_of_a_model_are_compiled(monkeypatch):
    asked = []
    monkeypatch.setattr(program, "address_of", lambda f, _: asked.append(f.__name__) or 1)
    model = _between(nn.GELU())
    program_of(model, Layout.of(model), torch.zeros(1, 6), 5).layers()
    products = {"combine", "dots"}
    assert set(asked) == {"linear", "linear_backward", "gelu", "gelu_backward"} | products


def test_without_a_folder_to_keep_it_in_code_is_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert jit_module._cache() is None
    monkeypatch.setattr(jit_module, "_CACHE", None)
    assert jit_module.exact_jit(lambda x: 2 * x)(21) == 42


def twice(x):
    return 2 * x


SIGNATURE = types.int64(types.int64)


def by_python() -> int:
    return jit_module.callable_from_python.__wrapped__(twice, SIGNATURE)(21)


def by_address() -> int:
    address = jit_module.address_of.__wrapped__(twice, SIGNATURE)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(21)


@pytest.mark.parametrize("call", [by_python, by_address])
@pytest.mark.parametrize("damaged", [".nbi", ".nbc"])
@pytest.mark.parametrize("size", [0, 40])
def test_a_damaged_cache_is_said_and_written_anew(
    call, damaged, size, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(jit_module, "_CACHE", tmp_path)
    assert call() == 42
    (file,) = tmp_path.rglob(f"*{damaged}")
    file.write_bytes(file.read_bytes()[:size])
    with caplog.at_level(logging.WARNING, "dpfedls"):
        assert call() == 42
        assert ["cannot be read" in record.message for record in caplog.records] == [True]
        assert file.stat().st_size > 40
        assert call() == 42
    assert len(caplog.records) == 1


def test_code_for_python_and_code_for_machine_code_do_not_meet_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(jit_module, "_CACHE", tmp_path)
    assert [by_python(), by_address(), by_python(), by_address()] == [42] * 4


def test_a_full_disk_only_costs_the_cache(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(jit_module, "_CACHE", tmp_path)

    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", refuse)
    with caplog.at_level(logging.WARNING, "dpfedls"):
        assert by_python() == 42
    assert "cannot be written" in caplog.text
