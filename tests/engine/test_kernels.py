"""The GPU's kernels against their plain twins; needs a GPU, so CI, which has none, skips it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from dpfedls.engine import choose, recurrence
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.engine.replay import one_by_one
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy
from dpfedls.tasks.models import character_lstm, cnn, mlp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("channels", [3, 20, 64])
@pytest.mark.parametrize("outputs", [24, 128])
@pytest.mark.parametrize(("dtype", "room"), [(torch.bfloat16, 4e-3), (torch.float32, 2e-5)])
def test_convolution_and_its_gradients(channels, outputs, dtype, room):
    """In float32 closer than TF32, which keeps 11 bits: 5e-4."""
    from dpfedls.engine.batching import Convolution

    torch.manual_seed(0)
    images = torch.randn(3, 2, channels, 9, 8, device="cuda").to(dtype).requires_grad_()
    weight = torch.randn(3, outputs, channels, 5, 3, device="cuda").to(dtype).requires_grad_()
    bias = torch.randn(3, outputs, device="cuda").to(dtype).requires_grad_()
    leaves = (images, weight, bias)
    found = Convolution.apply(*leaves, (2, 1))
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    parts = zip(*exact, strict=True)
    expected = torch.stack([nn.functional.conv2d(x, w, b, padding=(2, 1)) for x, w, b in parts])
    assert _distance(found, expected) < room
    slopes = torch.randn_like(expected).to(dtype)
    ours = torch.autograd.grad(found, leaves, slopes)
    theirs = torch.autograd.grad(expected, exact, slopes.double())
    assert max(_distance(a, b) for a, b in zip(ours, theirs, strict=True)) < room


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
def test_clients_at_once_equal_one_after_another(named, precision, room, retry_step, monkeypatch):
    """In bfloat16 two steps may differ by the rounding of one gradient, and no more."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the twin in all its bits
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
    # Everybody trained again: without that the longest update has 0.14 at least. The last batch may
    # be one sample, whose step is longer than the first.
    assert retry_step is None or float(twin.norm(dim=1).max()) < 4 * 0.7 * retry_step


KINDS = {
    "mlp": lambda: mlp(3 * 32 * 32, 20, 10),
    "cnn": lambda: cnn(1 / 8),
    "vmap": lambda: normed(),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_steps_give_the_numbers_of_launched_ones(kind, precision, recwarn):
    """Bit for bit, with clients of several sizes, short batches, and one radius after another."""
    update, params, everyone = many_steps(KINDS[kind](), precision)
    launched = many_steps(KINDS[kind](), precision)[0]
    vars(launched)["_run"] = one_by_one
    for round_, radius in ((0, 0.7), (1, 0.3), (2, math.inf)):
        found = update(params, everyone, round_, 1, radius)
        assert torch.equal(found, launched(params, everyone, round_, 1, radius))
    assert vars(update)["_run"].__self__.last is not None
    assert not recwarn.list


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_many_clients_train_at_once_whatever_the_precision(precision):
    """Our convolutions do not round as torch's do, which the probe must not take for a fault."""
    model, person = cnn().cuda(), (torch.randn(4, 3, 32, 32), torch.arange(4))
    data = ClientData.from_pairs([person]).to(torch.device("cuda"))
    local = LocalSGD(epochs=1, batch_size=4, learning_rate=0.1, precision=precision)
    assert choose(model, data, local).name == "vmapped"


@pytest.mark.parametrize("seed", range(4))
def test_black_images_do_not_hide_that_clients_can_train_at_once(seed):
    """Bytes are tried as zeros, where each pixel is a maximum and rounding chooses one."""
    torch.manual_seed(seed)
    images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    data = ClientData.from_pairs([(images, torch.arange(4))]).to(torch.device("cuda"))
    local = LocalSGD(epochs=1, batch_size=4, learning_rate=0.1, precision="bfloat16")
    assert choose(cnn().cuda(), data, local).name == "vmapped"


def test_a_step_that_cannot_be_recorded_is_launched_and_said_once(recwarn):
    """Samples that stay with the host need it in every step."""
    update, params, everyone = many_steps(mlp(3 * 32 * 32, 20, 10), "float32", "cpu")
    launched = many_steps(mlp(3 * 32 * 32, 20, 10), "float32", "cpu")[0]
    vars(launched)["_run"] = one_by_one
    for round_ in range(2):
        found = update(params, everyone, round_, 1, 0.7)
        assert torch.equal(found, launched(params, everyone, round_, 1, 0.7))
    assert len(recwarn.list) == 1
    assert "CUDA graph" in str(recwarn.list[0].message)
    assert (torch.ones(1000, device="cuda").sum() == 1000).item()  # the card still works


def many_steps(model, precision, features_on="cuda"):
    torch.manual_seed(0)
    sizes = np.array([13, 0, 12, 13, 31])  # 3 batches a pass, none, 2, 3 and 6
    features, targets = torch.randn(69, 3, 32, 32), torch.randint(10, (69,)).cuda()
    starts = np.cumsum(sizes) - sizes
    data = ClientData(features.to(features_on), targets, starts, sizes)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    model = nn.Sequential(nn.Flatten(), *model) if isinstance(model[0], nn.Linear) else model
    model, layout = model.cuda(), Layout.of(model)
    local = LocalSGD(epochs=15, batch_size=6, learning_rate=0.1, decay=0.5, precision=precision)
    update = VmappedUpdate(model, cross_entropy, layout, data, local)
    return update, layout.read(model), np.arange(5)


def normed():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())
