"""Machine code against its slow twin: any chain it takes on, it trains as plain torch would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from dpfedls.clients import ClientData
from dpfedls.compiled.jit import jit
from dpfedls.compiled.update import CompiledUpdate, compiled_update
from dpfedls.local_update import LocalSGD, LoopedUpdate, cross_entropy
from dpfedls.parameters import Layout
from dpfedls.tasks.models import LSTM, LastPosition, Standardise, character_lstm, cnn

SIZES = np.array([7, 1, 0, 12, 7, 5])  # batches of 5: short ones, a lone sample, nobody's
CLIP = 0.4


def _pixels(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def _letters(alphabet: int, positions: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(alphabet, (count, positions), dtype=torch.uint8)


def _images(net: nn.Module, flat: int) -> nn.Module:
    return nn.Sequential(net, nn.Flatten(), nn.Linear(flat, 3))


# model and features; all have three classes
CHAINS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
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
    "pooling first": (
        lambda: _images(nn.Sequential(nn.MaxPool2d(3), nn.Conv2d(2, 3, 2)), 3),
        _pixels(2, 6, 6),
    ),
    "the paper's network, thin": (
        lambda: nn.Sequential(*cnn(1 / 16)[:-1], nn.Linear(12, 3)),
        _pixels(3, 32, 32),
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
}
LOCAL = LocalSGD(epochs=3, batch_size=5, learning_rate=0.5, decay=0.9, weight_decay=0.01)


def federation(name: str) -> tuple[nn.Module, Layout, ClientData]:
    torch.manual_seed(0)
    make, draw = CHAINS[name]
    model, count = make(), int(SIZES.sum())
    targets = torch.randint(3, (count,))
    return model, Layout.of(model), ClientData(draw(count), targets, SIZES.cumsum() - SIZES, SIZES)


def compiled(name: str, local: LocalSGD = LOCAL) -> tuple[CompiledUpdate, Tensor]:
    model, layout, data = federation(name)
    update = compiled_update(model, cross_entropy, layout, data, local, CLIP)
    assert update is not None
    return update, layout.read(model)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    "local",
    [LOCAL, replace(LOCAL, epochs=None, steps=4, projection="final")],
    ids=["epochs, projected", "steps, not projected"],
)
def test_it_trains_as_the_slow_twin_does(name, local):
    model, layout, data = federation(name)
    update, params = compiled(name, local)
    everyone = np.array([3, 0, 2, 1, 5, 4])
    expected = LoopedUpdate(model, cross_entropy, layout, data, local, CLIP)(params, everyone, 2, 7)
    found = update(params, everyone, 2, 7)
    assert expected[1].norm() > 0.05  # somebody learned something
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)
    assert not found[2].any()  # who has no samples moves nothing


@pytest.mark.parametrize("name", ["linear", "convolution", "LSTM"])
def test_an_update_is_the_same_to_the_last_bit_whoever_trains_beside_it(name):
    """In another order, in fewer threads, after others have used the room to work in."""
    update, params = compiled(name)
    together = update(params, np.arange(6), 0, 7)
    update.threads = 1
    alone = [update(params, np.array([j]), 0, 7)[0] for j in (5, 0, 3)]
    for j, own in zip((5, 0, 3), alone, strict=True):
        assert torch.equal(own, together[j])


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_nothing_of_one_person_reaches_anothers_update(name):
    model, layout, data = federation(name)
    params = layout.read(model)
    before = compiled_update(model, cross_entropy, layout, data, LOCAL, CLIP)
    data.features[data.starts[3] : data.starts[3] + data.sizes[3]] = torch.nan
    after = compiled_update(model, cross_entropy, layout, data, LOCAL, CLIP)
    assert before is not None
    assert after is not None
    found = after(params, np.arange(6), 0, 7)
    assert found[3].isnan().any()  # NaN is not lost on the way either
    others = [0, 1, 2, 4, 5]
    data.features.nan_to_num_(0.0)
    assert torch.equal(before(params, np.arange(6), 0, 7)[others], found[others])


def test_not_a_number_survives_pooling():
    """It stands before larger pixels of its tile, and must not be forgotten for them."""
    features = torch.ones(1, 1, 4, 4)
    features[0, 0, 0, 0] = torch.nan
    data = ClientData.from_pairs([(features, torch.zeros(1).long())])
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3))
    update = compiled_update(model, cross_entropy, Layout.of(model), data, LOCAL, CLIP)
    assert update is not None
    assert update(Layout.of(model).read(model), np.array([0]), 0, 7).isnan().any()


class Doubled(nn.Linear):
    def forward(self, input):  # noqa: A002 - torch's name
        return 2 * super().forward(input)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def hooked() -> nn.Module:
    model = nn.Linear(6, 3)
    model.register_forward_hook(lambda *_: None)
    return model


def heard_backwards() -> nn.Module:
    model = nn.Linear(6, 3)
    model.register_full_backward_hook(lambda *_: None)
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


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: Doubled(6, 3), (6,)),
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), (6,)),
        (frozen, (6,)),
        (hooked, (6,)),
        (heard_backwards, (6,)),
        (with_a_forward_of_its_own, (6,)),
        (with_another_weight, (6,)),
        (shared, (6,)),
        (lambda: nn.Linear(6, 3), (2, 6)),  # scores of several positions
        (lambda: _images(nn.Conv2d(2, 3, 3, stride=2), 12), (2, 6, 6)),
        (lambda: _images(nn.Conv2d(2, 3, 3, dilation=2), 12), (2, 6, 6)),
        (lambda: _images(nn.Conv2d(2, 4, 3, groups=2), 64), (2, 6, 6)),
        (lambda: _images(nn.Conv2d(2, 3, 1, padding=1), 192), (2, 6, 6)),  # a margin of nothing
        (lambda: _images(nn.Conv2d(2, 3, 3, padding="same"), 108), (2, 6, 6)),
        (lambda: _images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), 108), (2, 6, 6)),
        (lambda: _images(nn.MaxPool2d(2, stride=1), 50), (2, 6, 6)),
        (lambda: _images(nn.MaxPool2d(4), 2), (2, 6, 6)),
        (lambda: _images(nn.MaxPool2d(2, padding=1), 32), (2, 6, 6)),
    ],
)
def test_what_it_does_not_know_is_left_to_torch(make, shape):
    model = make()
    data = ClientData.from_pairs([(torch.randn(4, *shape), torch.zeros(4, dtype=torch.long))])
    assert compiled_update(model, cross_entropy, Layout.of(model), data, LOCAL, CLIP) is None


def test_other_losses_and_precisions_are_left_to_torch():
    model, layout, data = federation("linear")
    half = replace(LOCAL, precision="bfloat16")
    assert compiled_update(model, cross_entropy, layout, data, half, CLIP) is None
    assert compiled_update(model, lambda o, t: o.sum(1), layout, data, LOCAL, CLIP) is None


@pytest.mark.parametrize(
    ("model", "features"),
    [
        (nn.Linear(6, 3), torch.ones(4, 6).long()),
        (nn.Sequential(nn.Tanh(), nn.Embedding(5, 3)), torch.ones(4, 6).long()),
        (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3)), torch.ones(4, 6).long()),
        (
            nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(18, 3)),
            torch.ones(4, 6).long(),
        ),
        (nn.Sequential(LSTM(6, 3), LastPosition()), torch.ones(4, 5, 6)),  # other than symbols
        (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3)), torch.ones(4, 6)),
    ],
)
def test_symbols_sequences_and_numbers_do_not_mix(model, features):
    data = ClientData.from_pairs([(features, torch.zeros(4).long())])
    assert compiled_update(model, cross_entropy, Layout.of(model), data, LOCAL, CLIP) is None


def test_code_that_cannot_be_kept_on_disk_is_compiled_all_the_same():
    space: dict = {}
    exec("def double(x): return 2 * x", space)  # a function of no file has no cache
    assert jit(space["double"])(21) == 42
