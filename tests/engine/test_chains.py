"""What is a chain, and layers with rules of their own, each against vmap's way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dpfedls.engine import chains
from dpfedls.engine.batching import client_layers
from dpfedls.engine.chains import chain_of
from dpfedls.engine.recurrence import recurrence
from dpfedls.parameters import Layout
from dpfedls.tasks.models import Standardise, character_lstm, cnn

CLIENTS, BATCH = 3, 4

CHAINS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "no bias": (
        lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)),
        (6,),
    ),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.GELU()), nn.Linear(5, 3)),
        (6,),
    ),
    "in place": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        (6,),
    ),
    "one activation twice": (lambda: activated_twice(nn.Tanh()), (6,)),
    "convolutions": (lambda: cnn(1 / 16), (3, 32, 32)),
    "strided": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        (2, 13, 13),
    ),
    "bytes": (
        lambda: nn.Sequential(Standardise((0.5,), (0.2,)), nn.Flatten(), nn.Linear(16, 3)),
        (1, 4, 4),
    ),
}


def activated_twice(act: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), act, nn.Linear(5, 4), act, nn.Linear(4, 3))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        name: (p.detach() + 0.1 * torch.randn(CLIENTS, *p.shape)).requires_grad_()
        for name, p in model.named_parameters()
    }


def by_vmap(model: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    return vmap(lambda t, x: functional_call(model, t, (x,)))(tensors, x)


def gradients(outputs: Tensor, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(outputs.square().sum(), list(tensors.values()))


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_computes_what_vmap_does(name):
    torch.manual_seed(0)
    make, shape = CHAINS[name]
    model, x = make(), torch.randn(CLIENTS, BATCH, *shape)
    chain, tensors = chain_of(model, Layout.of(model)), tensors_of(model)
    assert chain is not None
    found, expected = chain(tensors, x), by_vmap(model, tensors, x)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(gradients(found, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_relu_stands_behind_pooling():
    """A quarter of the work; that nothing else changes is the test of "convolutions" above."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU())
    order = chains._pooled_first(list(chains._leaves(model, "")))
    assert [prefix for _, prefix in order] == ["0.", "2.", "1.", "3."]


class Doubled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class Centred(nn.Identity):
    """Along the first dimension, which in a chain would be the clients."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return input - input.mean(dim=0)


class Gain(nn.ReLU):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.gain * super().forward(input)


def with_a_hook() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return layer


def with_a_frozen_bias() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.bias.requires_grad_(False)
    return layer


def tied() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def one_layer_twice() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "model",
    [
        Doubled(6, 3),
        nn.Sequential(Centred(), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(6, 3), Gain()),
        one_layer_twice(),
        with_a_hook(),
        with_a_frozen_bias(),
        tied(),
        nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
        nn.Sequential(nn.Embedding(5, 6, max_norm=1.0), nn.Flatten()),
        nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.Flatten()),
        nn.Sequential(nn.Flatten(2), nn.Linear(6, 3)),
        character_lstm(7),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_is_not_a_chain_of_known_layers_is_left_to_vmap(model):
    assert chain_of(model, Layout.of(model)) is None


class Residual(nn.Module):
    """Not a chain, so vmap computes it, with our rule for its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shared = nn.Linear(6, 6), torch.randn(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        shared = nn.functional.linear(input=x, weight=self.shared)
        return (
            x + torch.relu_(self.inner(shared)) + nn.functional.linear(x, self.shared[0])[:, None]
        )


@pytest.mark.parametrize("named", ["residual", "lstm"])
def test_layers_under_vmap_with_rules_of_their_own(named):
    torch.manual_seed(0)
    model = Residual() if named == "residual" else character_lstm(7, 3, 5, 2)
    x = torch.randn(CLIENTS, BATCH, 6)
    x = x if named == "residual" else torch.randint(7, (CLIENTS, BATCH, 9))
    tensors = tensors_of(model)
    one_by_one = torch.stack(
        [
            functional_call(model, {name: t[k] for name, t in tensors.items()}, (x[k],))
            for k in range(CLIENTS)
        ]
    )
    with client_layers():
        found = by_vmap(model, tensors, x)
    torch.testing.assert_close(found, one_by_one)
    for ours, theirs in zip(gradients(found, tensors), gradients(one_by_one, tensors), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_cross_entropy_with_options_goes_its_usual_way():
    scores, labels = torch.randn(CLIENTS, BATCH, 5), torch.randint(5, (CLIENTS, BATCH))
    for options in ({"label_smoothing": 0.1}, {"weight": torch.rand(5)}, {}):
        loss = lambda s, y, o=options: nn.functional.cross_entropy(s, y, reduction="none", **o)  # noqa: E731
        with client_layers():
            found = vmap(loss)(scores, labels)
        expected = torch.stack([loss(*pair) for pair in zip(scores, labels, strict=True)])
        torch.testing.assert_close(found, expected)


def test_a_label_that_does_not_count():
    scores = torch.randn(CLIENTS, BATCH, 5, requires_grad=True)
    labels = torch.randint(5, (CLIENTS, BATCH))
    labels[1, 2] = -100
    loss = lambda s, y: nn.functional.cross_entropy(s, y, reduction="none")  # noqa: E731
    with client_layers():
        found = vmap(loss)(scores, labels)
    expected = torch.stack([loss(*pair) for pair in zip(scores, labels, strict=True)])
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(part.sum(), scores)[0] for part in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_recurrence_is_torchs_lstm():
    torch.manual_seed(0)
    theirs = nn.LSTM(6, 5)
    x = torch.randn(7, BATCH, 6)
    weights = (theirs.weight_ih_l0, theirs.weight_hh_l0, theirs.bias_ih_l0 + theirs.bias_hh_l0)
    found = recurrence(x @ weights[0].mT, *weights[1:])
    expected, _ = theirs(x)
    torch.testing.assert_close(found, expected)
    parameters = list(theirs.parameters())
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
