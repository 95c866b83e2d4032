"""Machine code against its slow twin: any chain it takes on, it trains as plain torch would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from dpfedls.engine import jit as jit_module
from dpfedls.engine.compiled import sequences
from dpfedls.engine.compiled import update as update_module
from dpfedls.engine.compiled.training import loss_slopes
from dpfedls.engine.compiled.update import CompiledUpdate, compiled_update
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD, LoopedUpdate, Loss, cross_entropy
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
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


def machine_code(
    model: nn.Module, data: ClientData, local: LocalSGD = LOCAL, loss: Loss = cross_entropy
) -> CompiledUpdate | None:
    return compiled_update(VmappedUpdate(model, loss, Layout.of(model), data, local, CLIP))


def compiled(name: str, local: LocalSGD = LOCAL) -> tuple[CompiledUpdate, Tensor]:
    model, layout, data = federation(name)
    update = machine_code(model, data, local)
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


@pytest.mark.parametrize("classes", [3, 10, 20])
def test_an_update_is_the_same_to_the_last_bit_whoever_trains_beside_it(classes):
    """In other blocks and orders, in one thread and two, in memory that lies elsewhere."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, classes))
    pairs = [(torch.randn(n, 16), torch.randint(classes, (n,))) for n in SIZES]
    data, layout = ClientData.from_pairs(pairs), Layout.of(model)
    params, found = layout.read(model), []
    for threads, block in (
        (2, [0, 1, 2, 3, 4, 5]),
        (1, [5, 3]),
        (1, [3]),
        (2, [3, 0]),
        (3, [4, 3]),
    ):
        update = machine_code(model, data)
        assert update is not None
        update.threads = threads
        lost = [np.empty(n + 7) for n in range(block[0], 40)]  # memory is taken elsewhere each time
        found.append(update(params, np.array(block), 0, 7)[block.index(3)])
        del lost
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("classes", range(1, 60, 3))
def test_the_losss_slopes_do_not_depend_on_where_memory_was_free(classes):
    rng = np.random.default_rng(classes)
    memory, scores = np.empty(1000, np.float32), rng.normal(size=classes).astype(np.float32)
    found = set()
    for gap in range(0, 300, 2):
        own, out = memory[:classes], memory[classes + gap : 2 * classes + gap]
        own[:] = scores
        loss_slopes(own, np.zeros(1, np.int64), out)
        found.add(out.tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_nothing_of_one_person_reaches_anothers_update(name):
    model, layout, data = federation(name)
    params = layout.read(model)
    before = machine_code(model, data)
    data.features[data.starts[3] : data.starts[3] + data.sizes[3]] = torch.nan
    after = machine_code(model, data)
    assert before is not None
    assert after is not None
    found = after(params, np.arange(6), 0, 7)
    assert found[3].isnan().any()  # NaN is not lost on the way either
    others = [0, 1, 2, 4, 5]
    data.features.nan_to_num_(0.0)
    assert torch.equal(before(params, np.arange(6), 0, 7)[others], found[others])


def test_the_written_out_sigmoid_is_exact_to_a_few_units_in_the_last_place():
    at = np.concatenate([np.linspace(-86, 120, 100_001), [-1e30, -200.0, 0.0, 1e30]])
    at = at.astype(np.float32)
    values = at.copy()
    sequences._sigmoid(values, np.empty(len(values), np.int32))
    with np.errstate(over="ignore"):
        expected = 1 / (1 + np.exp(-at.astype(np.float64)))
    np.testing.assert_allclose(values, expected, rtol=5e-7, atol=1e-37)


def test_a_threads_arrays_lie_apart_in_the_same_way_wherever_memory_was_free():
    wanted = ((7,), np.float32), ((3, 5), np.int64), None, ((1,), np.int32)
    ways, kept = set(), []
    for size in (1, 100, 5000):
        kept.append(np.empty(size))  # so that the next piece lies elsewhere
        first, second, _, third = update_module._apart(*wanted)
        starts = [array.ctypes.data for array in (first, second, third)]
        ends = [array.ctypes.data + array.nbytes for array in (first, second)]
        assert min(b - a for a, b in zip(ends, starts[1:], strict=True)) >= 4096
        ways.add((starts[0] % 64, starts[1] - starts[0], starts[2] - starts[0]))
    assert len(ways) == 1


@pytest.mark.parametrize("first", [nn.MaxPool2d(2), nn.ReLU(), nn.Tanh()])
def test_not_a_number_survives(first):
    """In pooling it stands before larger pixels of its tile, and must not be forgotten for them."""
    features = torch.ones(1, 1, 4, 4)
    features[0, 0, 0, 0] = torch.nan
    data = ClientData.from_pairs([(features, torch.zeros(1).long())])
    model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3))
    model(features)
    update = machine_code(model, data)
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
    assert machine_code(model, data) is None


def test_other_losses_and_precisions_are_left_to_torch():
    model, _, data = federation("linear")
    half = replace(LOCAL, precision="bfloat16")
    assert machine_code(model, data, half) is None
    assert machine_code(model, data, loss=lambda o, t: o.sum(1)) is None


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
        (
            nn.Sequential(nn.Embedding(5, 3, padding_idx=1), LSTM(3, 4), LastPosition()),
            torch.ones(4, 6).long(),
        ),
        (nn.Sequential(LSTM(6, 3), LastPosition()), torch.ones(4, 5, 6)),  # other than symbols
        (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3)), torch.ones(4, 6)),
    ],
)
def test_symbols_sequences_and_numbers_do_not_mix(model, features):
    data = ClientData.from_pairs([(features, torch.zeros(4).long())])
    assert machine_code(model, data) is None


def test_without_a_folder_to_keep_it_in_code_is_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert jit_module._cache() is None
    monkeypatch.setattr(jit_module, "_CACHE", None)
    assert jit_module.jit(lambda x: 2 * x)(21) == 42


@pytest.mark.parametrize("wrong", ["label", "label to be left out", "symbol"])
def test_what_is_no_place_in_memory_is_refused(wrong):
    """Machine code would read or write there; a layer before it may have made the symbol."""
    model, layout, data = federation("LSTM")
    if wrong == "symbol":
        data.features[3] = 5
    else:
        data.targets[3] = 3 if wrong == "label" else -100
    update = machine_code(model, data)
    assert update is not None
    with pytest.raises(InputError, match="client 0 has a label beyond the model's 3 outputs, or"):
        update(layout.read(model), np.arange(6), 0, 7)


def test_no_more_samples_are_prepared_than_are_seen():
    seen = []

    class Counted(Standardise):
        def forward(self, images):
            seen.append(len(images))
            return super().forward(images)

    model = nn.Sequential(Counted((0.5,), (0.2,)), nn.Flatten(), nn.Linear(16, 3))
    pair = (torch.randint(256, (1000, 1, 4, 4), dtype=torch.uint8), torch.randint(3, (1000,)))
    data, layout = ClientData.from_pairs([pair]), Layout.of(model)
    local = LocalSGD(steps=2, batch_size=4)
    update = machine_code(model, data, local)
    assert update is not None
    found = update(layout.read(model), np.array([0]), 0, 7)
    assert seen[-1] == 8
    twin = LoopedUpdate(model, cross_entropy, layout, data, local, CLIP)
    expected = twin(layout.read(model), np.array([0]), 0, 7)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_of_no_width_are_left_to_torch():
    model = nn.Sequential(nn.Linear(6, 0), nn.Linear(0, 3))
    data = ClientData.from_pairs([(torch.randn(4, 6), torch.zeros(4).long())])
    assert machine_code(model, data) is None
