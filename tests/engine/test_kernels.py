"""The GPU's kernels against their plain twins; needs a GPU, so CI, which has none, skips it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from dpfedls.engine import recurrence
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.local_sgd import LocalSGD, LoopedUpdate
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy
from dpfedls.tasks.models import character_lstm, cnn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("channels", [3, 20, 64])
@pytest.mark.parametrize("outputs", [24, 128])
def test_convolution_and_its_gradients(channels, outputs):
    from dpfedls.engine.batching import Convolution

    torch.manual_seed(0)
    images = torch.randn(3, 2, channels, 9, 8, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(3, outputs, channels, 5, 3, device="cuda").bfloat16().requires_grad_()
    bias = torch.randn(3, outputs, device="cuda").bfloat16().requires_grad_()
    leaves = (images, weight, bias)
    found = Convolution.apply(*leaves, (2, 1))
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    parts = zip(*exact, strict=True)
    expected = torch.stack([nn.functional.conv2d(x, w, b, padding=(2, 1)) for x, w, b in parts])
    assert _distance(found, expected) < 4e-3
    slopes = torch.randn_like(expected).bfloat16()
    ours = torch.autograd.grad(found, leaves, slopes)
    theirs = torch.autograd.grad(expected, exact, slopes.double())
    assert max(_distance(a, b) for a, b in zip(ours, theirs, strict=True)) < 4e-3


def test_pooling_is_exact():
    from dpfedls.engine.batching import MaxPool

    torch.manual_seed(0)
    images = torch.randn(3, 2, 5, 8, 6, device="cuda").bfloat16().requires_grad_()
    found = MaxPool.apply(images, 2)
    expected = nn.functional.max_pool2d(images.flatten(0, 1), 2).unflatten(0, (3, 2))
    slopes = torch.randn_like(expected)
    assert torch.equal(found, expected)
    ours, theirs = (torch.autograd.grad(o, images, slopes)[0] for o in (found, expected))
    assert torch.equal(ours, theirs)


def test_pooling_does_not_lose_what_is_no_number():
    from dpfedls.engine.kernels.pooling import largest

    tile = torch.tensor([[1.0, 2.0], [0.0, 3.0]], device="cuda")
    tiles = tile.expand(1, 4, 1, 2, 2).clone()
    for place in range(4):
        tiles.view(4, 4)[place, place] = torch.nan
    values, places = largest(tiles, 2)
    assert values.isnan().all()
    assert places.tolist() == [0, 1, 2, 3]


def test_recurrence():
    torch.manual_seed(0)
    driven, weight, bias = torch.randn(3, 7, 5, 96), torch.randn(3, 96, 24) / 5, torch.randn(3, 96)
    expected = recurrence._forward(driven, weight, bias)
    found = recurrence._forward_on_gpu(driven.cuda(), weight.cuda(), bias.cuda())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
    d_states = torch.randn_like(expected[0])
    d_gates = recurrence._backward(d_states, weight, *expected[1:])
    ours = recurrence._backward_on_gpu(d_states.cuda(), weight.cuda(), *found[1:])
    torch.testing.assert_close(ours.cpu(), d_gates, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "room"), [("float32", 1e-3), ("bfloat16", 0.25)])
@pytest.mark.parametrize("named", ["cnn", "lstm"])
@pytest.mark.parametrize("retry_step", [None, 0.01])
def test_clients_at_once_equal_one_after_another(named, precision, room, retry_step):
    """In bfloat16 two steps may differ by the rounding of one gradient, and no more."""
    torch.manual_seed(0)
    sizes, rows = np.array([7, 0, 12, 5]), 24
    if named == "cnn":
        model, features = cnn(1 / 4), torch.randn(rows, 3, 32, 32)
    else:
        model, features = character_lstm(20, 4, 32), torch.randint(20, (rows, 11))
    data = ClientData(features, torch.randint(10, (rows,)), np.cumsum(sizes) - sizes, sizes)
    model, data = model.cuda(), data.to(torch.device("cuda"))
    layout = Layout.of(model)
    exact = LocalSGD(steps=2, batch_size=6, learning_rate=0.1, retry_step=retry_step)
    local = replace(exact, precision=precision)
    params = layout.read(model)
    made = VmappedUpdate(model, cross_entropy, layout, data, local)(params, np.arange(4), 0, 1, 0.7)
    twin = LoopedUpdate(model, cross_entropy, layout, data, exact)(params, np.arange(4), 0, 1, 0.7)
    assert _distance(made, twin) < room
    assert retry_step is None or float(twin.norm(dim=1).max()) < 2 * 0.7 * retry_step * 1.1


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())
