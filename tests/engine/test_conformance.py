"""Every engine against the slow twin: model by model, setting by setting.

What an engine can train, it trains as ``LoopedUpdate`` does; what it cannot, it says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dpfedls import InputError, LocalSGD
from dpfedls.clipping import Bound, clip
from dpfedls.engine import Engine, choose
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.parameters import Layout
from dpfedls.people.losses import cross_entropy
from dpfedls.tasks.models import GRU, LastPosition, character_lstm, cnn

SIZES = np.array([7, 1, 0, 12, 5, 4])  # batches of 4: short ones, a lone sample, none, whole ones
EVERYONE, RADIUS, TOKENS, CLASSES = np.arange(len(SIZES)), 0.5, 5, 3


@dataclass(frozen=True)
class Samples:
    """People's data as engines ask for it; features and targets may be trees."""

    features: Any
    targets: Any
    starts: np.ndarray
    sizes: np.ndarray

    def take(self, rows: Tensor, padded: bool = False) -> tuple[Any, Any]:
        rows = torch.where(rows < 0, ~rows, rows)
        return tree_map(lambda part: part[rows], (self.features, self.targets))


def numbers(*shape: int) -> Callable[[int], Any]:
    return lambda count: torch.randn(count, *shape)


def tokens(positions: int) -> Callable[[int], Any]:
    return lambda count: torch.randint(TOKENS, (count, positions))


def images() -> Callable[[int], Any]:
    return numbers(2, 6, 6)


class Net(nn.Module):
    """Modules by name, and how to run them."""

    def __init__(self, run: Callable[[Any, Any], Any], **modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, inputs: Any) -> Any:
        return self.run(self, inputs)


ACTIVATIONS = (
    nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.ELU(), nn.SELU(), nn.GELU(),
    nn.GELU("tanh"), nn.SiLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.Hardswish(),
)  # fmt: skip


def mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), activation, nn.Linear(8, CLASSES))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def odd_cnn() -> nn.Module:
    """Nothing plain: stride, dilation, groups, 'same' padding, overlapping and ragged windows."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=(1, 2), padding=2, dilation=2), nn.MaxPool2d(3, 1, padding=1),
        nn.Conv2d(4, 4, 3, padding="same", groups=2, bias=False), nn.AvgPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def residual() -> nn.Module:
    block = nn.Sequential(nn.GroupNorm(2, 4), nn.GELU(), nn.Conv2d(4, 4, 3, padding=1))
    return Net(
        lambda m, x: m.head((m.stem(x) + m.block(m.stem(x))).mean(dim=(2, 3))),
        stem=nn.Conv2d(2, 4, 3),
        block=block,
        head=nn.Linear(4, CLASSES),
    )


class Transformer(nn.Module):
    """Tokens, positions in a constant buffer, attention, LayerNorm; causal, or padding unseen."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.embed = nn.Embedding(TOKENS, 8, padding_idx=1)
        angles = torch.arange(9.0)[:, None] / 10 ** torch.arange(0, 2, 0.5)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=1))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embed(tokens) + self.positions
        unseen = tokens == 1
        unseen[:, 0] = False
        future = nn.Transformer.generate_square_subsequent_mask(9)
        values = (
            self.layer(values, future)
            if self.causal
            else self.layer(values, src_key_padding_mask=unseen)
        )
        return self.head(values.mean(dim=1))


def recurrent(layer: nn.Module, width: int) -> nn.Module:
    return Net(
        lambda m, x: m.head(m.layer(m.embed(x))[0][:, -1]),
        embed=nn.Embedding(TOKENS, 4),
        layer=layer,
        head=nn.Linear(width, CLASSES),
    )


def tied() -> nn.Module:
    model = Net(
        lambda m, x: m.head(m.embed(x).mean(dim=1)),
        embed=nn.Embedding(TOKENS, 6),
        head=nn.Linear(6, TOKENS),
    )
    model.head.weight = model.embed.weight
    return model


def twice() -> nn.Module:
    """One module under two names, as in ALBERT or siamese towers."""
    layer = nn.Linear(6, 6)
    return Net(
        lambda m, x: m.head(m.body(x)),
        first=layer,
        body=nn.Sequential(layer, nn.Tanh(), layer),
        head=nn.Linear(6, CLASSES),
    )


def frozen_backbone() -> nn.Module:
    backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    with torch.no_grad():
        backbone(3 * torch.randn(50, 6) + 1)  # running statistics, of nobody's data
    backbone.eval().requires_grad_(False)
    return Net(lambda m, x: m.head(m.backbone(x)), backbone=backbone, head=nn.Linear(8, CLASSES))


def normed() -> nn.Module:
    """Cannot take a sample of zeros: nothing may be filled up with them."""
    return Net(lambda m, x: m.head(x / x.norm(dim=1, keepdim=True)), head=nn.Linear(6, CLASSES))


def from_dict() -> nn.Module:
    return Net(
        lambda m, x: m.head(m.words(x["words"]).mean(dim=1) + m.age(x["age"])),
        words=nn.Embedding(TOKENS, 4),
        age=nn.Linear(1, 4),
        head=nn.Linear(4, CLASSES),
    )


def dict_features(count: int) -> dict[str, Tensor]:
    return {"words": torch.randint(TOKENS, (count, 3)), "age": torch.randn(count, 1)}


def two_heads() -> nn.Module:
    return Net(
        lambda m, x: (m.first(x["a"]), {"second": m.second(x["b"])}),
        first=nn.Linear(6, CLASSES),
        second=nn.Linear(2, 1),
    )


def two_losses(outputs: Any, targets: Tensor) -> Tensor:
    first, second = outputs[0], outputs[1]["second"]
    return cross_entropy(first, targets) + (second.squeeze(-1) - targets).square()


def undecided() -> nn.Module:
    """Which layer runs depends on the data."""
    return Net(
        lambda m, x: m.low(x) if x.mean() < 0 else m.high(x),
        low=nn.Linear(6, CLASSES),
        high=nn.Linear(6, CLASSES),
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(targets, CLASSES)).square().mean(dim=1)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Torch's own, with options."""
    weight = torch.tensor([1.0, 2.0, 0.5])
    return nn.functional.cross_entropy(outputs, targets, weight, reduction="none")


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    features: Callable[[int], Any]
    auto: str  # the engine that "auto" finds on a CPU; machine code may know more one day
    loss: Callable[..., Tensor] = cross_entropy


CASES = {
    "linear": Case(lambda: nn.Linear(6, CLASSES), numbers(6), "compiled"),
    **{
        f"mlp {activation}": Case(lambda a=activation: mlp(a), numbers(6), "fast")
        for activation in ACTIVATIONS
    },
    "one activation twice": Case(
        lambda: nn.Sequential(mlp(a := nn.Tanh()), a, nn.Linear(CLASSES, CLASSES)),
        numbers(6),
        "compiled",
    ),
    "cnn": Case(small_cnn, images(), "compiled"),
    "the paper's cnn": Case(lambda: cnn(1 / 16), numbers(3, 32, 32), "compiled"),
    "odd cnn": Case(odd_cnn, images(), "fast"),
    "residual GroupNorm": Case(residual, images(), "fast"),
    "LayerNorm": Case(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, CLASSES)),
        numbers(6),
        "fast",
    ),
    "LayerNorm without weights": Case(
        lambda: nn.Sequential(nn.LayerNorm((2, 3), elementwise_affine=False), nn.Flatten(),
                              nn.Linear(6, CLASSES)),
        numbers(2, 3),
        "fast",
    ),
    "transformer": Case(lambda: Transformer(causal=False), tokens(9), "vmapped"),
    "causal transformer": Case(lambda: Transformer(causal=True), tokens(9), "vmapped"),
    "our LSTM": Case(lambda: character_lstm(TOKENS, 4, 6, 2), tokens(9), "compiled"),
    "our GRU": Case(
        lambda: nn.Sequential(nn.Embedding(TOKENS, 4), GRU(4, 6, 2), LastPosition(),
                              nn.Linear(6, CLASSES)),
        tokens(9),
        "compiled",
    ),
    "nn.LSTM": Case(lambda: recurrent(nn.LSTM(4, 6, batch_first=True), 6), tokens(9), "looped"),
    "nn.GRU": Case(
        lambda: recurrent(nn.GRU(4, 3, 2, batch_first=True, bidirectional=True), 6),
        tokens(9),
        "looped",
    ),
    "attention": Case(
        lambda: Net(
            lambda m, x: m.head(m.attend(x, x, x)[0][:, 0]),
            attend=nn.MultiheadAttention(6, 2, batch_first=True),
            head=nn.Linear(6, CLASSES),
        ),
        numbers(4, 6),
        "vmapped",
    ),
    "embedding": Case(
        lambda: nn.Sequential(
            nn.Embedding(TOKENS, 4, padding_idx=-1), nn.Flatten(), nn.Linear(36, CLASSES)
        ),
        tokens(9),
        "fast",
    ),
    "sparse embedding": Case(
        lambda: nn.Sequential(
            nn.Embedding(TOKENS, 4, sparse=True), nn.Flatten(), nn.Linear(36, CLASSES)
        ),
        tokens(9),
        "fast",
    ),
    "embedding of bounded norm": Case(
        lambda: nn.Sequential(
            nn.Embedding(TOKENS, 4, max_norm=1.0), nn.Flatten(), nn.Linear(36, CLASSES)
        ),
        tokens(9),
        "looped",
    ),
    **{
        f"bag of words, {mode}": Case(
            lambda mode=mode, padding=padding: nn.Sequential(
                nn.EmbeddingBag(TOKENS, 4, mode=mode, padding_idx=padding), nn.Linear(4, CLASSES)
            ),
            tokens(9),
            "vmapped",
        )
        for mode, padding in (("mean", 1), ("sum", None))
    },
    "tied weights": Case(tied, tokens(9), "vmapped"),
    "one module twice": Case(twice, numbers(6), "vmapped"),
    "frozen backbone": Case(frozen_backbone, numbers(6), "vmapped"),
    "normed": Case(normed, numbers(6), "vmapped"),
    "dict features": Case(from_dict, dict_features, "vmapped"),
    "tuple output": Case(
        two_heads,
        lambda count: {"a": torch.randn(count, 6), "b": torch.randn(count, 2)},
        "vmapped",
        two_losses,
    ),
    "data-dependent": Case(undecided, numbers(6), "looped"),
    "squared error": Case(lambda: mlp(nn.Tanh()), numbers(6), "vmapped", squared_error),
    "weighted loss": Case(lambda: mlp(nn.Tanh()), numbers(6), "vmapped", weighted),
}  # fmt: skip
# An operation without a rule for vmap runs client by client, and torch says so in a warning.
pytestmark = pytest.mark.filterwarnings("error:There is a performance drop:UserWarning")
SETTINGS = {
    "epochs": LocalSGD(epochs=2, batch_size=4, learning_rate=0.3),
    "final": LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, decay=0.5, weight_decay=0.1,
                      projection="final"),
    "steps": LocalSGD(steps=5, batch_size=3, learning_rate=0.3, weight_decay=0.01, retry_step=0.1),
    "one batch": LocalSGD(epochs=2, batch_size=50, learning_rate=0.3, overshoot=0.1),
}  # fmt: skip


def federation(case: Case, seed: int = 0) -> tuple[nn.Module, Samples]:
    torch.manual_seed(seed)
    model, count = case.model(), int(SIZES.sum())
    features, targets = case.features(count), torch.randint(CLASSES, (count,))
    return model, Samples(features, targets, np.cumsum(SIZES) - SIZES, SIZES)


def built(case: Case, local: LocalSGD, engine: str) -> tuple[Engine, LoopedUpdate, Tensor]:
    """An engine, its slow twin, and the weights to start from."""
    model, data = federation(case)
    if isinstance(data.features, Tensor):  # machine code reads no other class
        from dpfedls.people.clients import ClientData

        data = ClientData(data.features, data.targets, data.starts, data.sizes)
    layout = Layout.of(model)
    made = choose(model, data, local, case.loss, engine=engine)
    return made, LoopedUpdate(model, case.loss, layout, data, local), layout.read(model)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["vmapped", "compiled"])
def test_every_engine_learns_what_the_slow_twin_does(engine, name, setting):
    case, local = CASES[name], SETTINGS[setting]
    can = {"looped": (), "vmapped": ("vmapped",), "compiled": ("vmapped", "compiled")}
    if engine not in can.get(case.auto, ("vmapped", "compiled")):
        with pytest.raises(InputError, match=f"engine = '{engine}' cannot train this model, not"):
            built(case, local, engine)
        return
    try:
        made, twin, params = built(case, local, engine)
    except InputError:
        assert (engine, case.auto) == ("compiled", "fast")  # vmap does, machine code need not
        return
    found, expected = (update(params, EVERYONE, 2, 11, RADIUS) for update in (made.update, twin))
    assert expected.norm() > 0.02  # something was learned, so that equality means something
    assert float((found - expected).norm() / expected.norm()) < 1e-4
    assert not found[SIZES == 0].any()
    assert Layout.of(twin.model) == twin.layout  # the model is given back as it was


@pytest.mark.parametrize("name", CASES)
def test_auto_finds_the_fastest_and_says_why(name, caplog):
    case = CASES[name]
    with caplog.at_level(logging.INFO, "dpfedls"):
        made, twin, params = built(case, SETTINGS["epochs"], "auto")
    assert made.name == case.auto or (case.auto == "fast" and made.name != "looped")
    (record,) = caplog.records
    assert record.getMessage() == f"engine: {made.name} ({made.reason})"
    assert record.levelno == (logging.WARNING if made.name == "looped" else logging.INFO)
    assert "\n" not in made.reason
    assert ("not compiled: " in made.reason) == (made.name != "compiled")
    assert ("not vmapped: " in made.reason) == (made.name == "looped")
    found = made.update(params, EVERYONE, 0, 3, RADIUS)
    torch.testing.assert_close(found, twin(params, EVERYONE, 0, 3, RADIUS), rtol=1e-3, atol=1e-5)


HALVED = ["mlp GELU(approximate='none')", "cnn", "frozen backbone", "transformer", "our LSTM",
          "dict features", "tied weights"]  # fmt: skip


@pytest.mark.parametrize("name", HALVED)
def test_in_bfloat16_only_rounding_differs(name):
    half = LocalSGD(steps=2, batch_size=4, learning_rate=0.1, precision="bfloat16")
    made, twin, params = built(CASES[name], half, "auto")
    assert made.name == "vmapped"
    _, exact, _ = built(CASES[name], LocalSGD(steps=2, batch_size=4, learning_rate=0.1), "looped")
    found, same, full = (
        update(params, EVERYONE, 0, 3, RADIUS) for update in (made.update, twin, exact)
    )
    assert found.dtype == torch.float32
    assert float((found - same).norm() / full.norm()) < 0.05
    assert 1e-5 < float((found - full).norm() / full.norm()) < 0.05


@pytest.mark.parametrize("name", CASES)
def test_one_persons_samples_move_no_other_update(name):
    """What sensitivity rests on: bit for bit, not to rounding."""
    case, local = CASES[name], SETTINGS["epochs"]
    model, data = federation(case)
    _, strange = federation(case, seed=1)
    own = torch.zeros(int(SIZES.sum()), dtype=torch.bool)
    own[data.starts[3] : data.starts[3] + SIZES[3]] = True

    def mixed(usual: Tensor, other: Tensor) -> Tensor:
        return torch.where(own.view(-1, *(1,) * (usual.dim() - 1)), other, usual)

    features = tree_map(mixed, data.features, strange.features)
    other = replace(data, features=features, targets=mixed(data.targets, strange.targets))
    params = Layout.of(model).read(model)
    before, after = (
        choose(model, some, local, case.loss).update(params, EVERYONE, 0, 7, RADIUS)
        for some in (data, other)
    )
    assert (before != after).any(dim=1).tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize("indicator", [0.0, 0.8])
@pytest.mark.parametrize("name", ["linear", "transformer", "nn.GRU", "dict features"])
def test_the_total_is_the_sum_of_clipped_updates_however_blocks_are_cut(name, indicator):
    made, twin, params = built(CASES[name], SETTINGS["final"], "auto")
    cohort, bound = np.array([5, 0, 3, 2, 4]), Bound(0.1, indicator)
    updates = twin(params, cohort, 0, 3, bound.norm)
    assert 0 < int((updates.norm(dim=1) > bound.norm).sum()) < len(cohort)
    expected = clip(updates, bound.norm).double().sum(dim=0)
    if indicator:
        inside = (updates.norm(dim=1) < bound.norm).double() - 0.5
        inside = inside[updates.any(dim=1)]  # whoever has no samples counts neither way
        expected = torch.cat([expected, indicator * inside.sum()[None]])
    for size in (1, 2, 5, made.block_size):
        engine = replace(made, block_size=size)
        found = engine.clipped_total(params, cohort, 0, 3, bound)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    nobody = made.clipped_total(params, cohort[:0], 0, 3, bound)
    assert nobody.shape == expected.shape
    assert not nobody.any()
