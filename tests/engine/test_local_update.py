"""What a client does, and that the twin which defines it is plain SGD."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from dpfedls import InputError, LocalSGD
from dpfedls.engine import choose
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.parameters import Layout
from dpfedls.people.batches import schedule
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy
from dpfedls.people.steps import project
from federations import SIZES, local, model_and_data

CLIENTS = np.arange(len(SIZES))


def built(kind, model, data, settings):
    layout = Layout.of(model)
    return kind(model, cross_entropy, layout, data, settings), layout.read(model)


def test_looped_update_is_plain_torch_sgd():
    """One client, one batch of everything, by torch.optim.SGD: the twin itself is right."""
    model, data = model_and_data("mlp")
    settings = LocalSGD(
        steps=3, batch_size=12, learning_rate=0.2, decay=0.9, weight_decay=0.05, projection="final"
    )
    looped, params = built(LoopedUpdate, model, data, settings)
    update = looped(params, np.array([3]), 2, key=5, radius=0.5)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 * 0.9**2, weight_decay=0.05)
    features, targets = data.client(3)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), targets).backward()
        optimizer.step()
    torch.testing.assert_close(params + update, Layout.of(model).read(model), rtol=1e-5, atol=1e-6)


def test_step_projection_keeps_every_step_inside_the_ball_and_differs_from_final():
    model, data = model_and_data("linear")
    settings = local(epochs=20, learning_rate=2.0)
    step, params = built(VmappedUpdate, model, data, settings)
    final, _ = built(VmappedUpdate, model, data, replace(settings, projection="final"))
    projected, free = (update(params, CLIENTS, 0, key=1, radius=0.1) for update in (step, final))
    assert (projected.norm(dim=1) <= 0.1 * (1 + 1e-5)).all()
    assert float(free.norm(dim=1).max()) > 0.1
    clipped = free * (0.1 / free.norm(dim=1, keepdim=True)).clamp(max=1)
    assert float((clipped - projected).norm()) > 1e-3


@pytest.fixture
def in_large_units():
    """A linear model and three people; the last has one sample. Columns are of the order of 500."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    x = torch.randn(40, 20, generator=rng) + 2 * y[:, None]
    data = ClientData(500 * x, y, np.array([0, 20, 39]), np.array([20, 19, 1]))
    model = torch.nn.Linear(20, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model, data


def test_steps_too_long_for_the_inputs_units_are_tried_again_shorter(in_large_units):
    """Without, the update ends on the sphere with a loss that grew; with, the loss falls."""
    model, data = in_large_units
    settings = LocalSGD(steps=25, batch_size=10, learning_rate=0.05)
    layout = Layout.of(model)

    def trained(settings, radius):
        update, params = built(LoopedUpdate, model, data, settings)
        made = update(params, CLIENTS[:2], 0, key=0, radius=radius)
        for j, moved in enumerate(made):
            tensors = layout.split(params + moved)
            scores = torch.func.functional_call(model, tensors, (data.client(j)[0],))
            yield float(moved.norm()), float(cross_entropy(scores, data.client(j)[1]).mean())

    for length, loss in trained(settings, 1.0):
        assert length > 0.99
        assert loss > 5
    for length, loss in trained(replace(settings, retry_step=0.3), 0.01):
        assert length < 0.0099  # so that a norm which follows the lengths comes down
        assert loss < 0.4


def test_a_first_step_that_overshoots_is_made_to_take_away_no_more_than_the_loss(in_large_units):
    """One step against the gradient by hand; three passes in every engine against the twin."""
    model, data = in_large_units
    settings = LocalSGD(epochs=1, batch_size=40, learning_rate=0.05, overshoot=8.0)
    looped, params = built(LoopedUpdate, model, data, settings)
    made = looped(params, CLIENTS[:2], 0, key=0, radius=1e6)
    for j, moved in enumerate(made):
        x, y = data.client(j)
        loss = cross_entropy(model(x), y).mean()
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
        )
        assert float(0.05 * gradient.square().sum() / loss.detach()) > 8
        expected = -gradient * loss.detach() / gradient.square().sum()
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-9)
    settings = replace(settings, epochs=3, batch_size=10)
    looped, _ = built(LoopedUpdate, model, data, settings)
    vmapped, _ = built(VmappedUpdate, model, data, settings)
    compiled = choose(model, data, settings, engine="compiled").update
    expected = looped(params, CLIENTS[:3], 0, key=0, radius=1.0)
    for update in (vmapped, compiled):
        found = update(params, CLIENTS[:3], 0, key=0, radius=1.0)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_whoever_does_not_overshoot_trains_once(in_large_units):
    model, data = in_large_units
    data = ClientData(data.features / 500, data.targets, data.starts, data.sizes)
    settings = LocalSGD(epochs=3, batch_size=10, learning_rate=0.05)
    for kind in (LoopedUpdate, VmappedUpdate):
        once, params = built(kind, model, data, settings)
        again, _ = built(kind, model, data, replace(settings, overshoot=8.0))
        first, second = (update(params, CLIENTS[:3], 0, 0, 1.0) for update in (once, again))
        assert torch.equal(first, second)


def test_whoever_learns_from_a_long_step_or_takes_a_short_one_does_not_train_again(in_large_units):
    model, data = in_large_units
    settings = LocalSGD(steps=5, batch_size=10, learning_rate=0.05)
    once, params = built(LoopedUpdate, model, data, settings)
    again, _ = built(LoopedUpdate, model, data, replace(settings, retry_step=0.3))
    for radius, same in ((0.01, [False, False, True]), (1e6, [True, True, True])):
        first, second = (update(params, CLIENTS[:3], 0, 0, radius) for update in (once, again))
        assert (first == second).all(dim=1).tolist() == same


def test_training_again_is_everybodys_own_matter(in_large_units):
    """To the last bit, whoever else is in the block: what the sensitivity rests on."""
    model, data = in_large_units
    settings = LocalSGD(steps=5, batch_size=10, learning_rate=0.05, retry_step=0.3)
    looped, params = built(LoopedUpdate, model, data, settings)
    for update in (looped, choose(model, data, settings, engine="compiled").update):
        together = update(params, CLIENTS[:3], 0, key=0, radius=0.01)
        for j in range(3):
            alone = update(params, CLIENTS[j : j + 1], 0, key=0, radius=0.01)[0]
            assert torch.equal(alone, together[j])


def test_whose_loss_grows_trains_again_and_again_in_every_engine(in_large_units):
    """The second's loss grows even with a first step of 0.3; tried again once it ends at 0.28."""
    model, data = in_large_units
    settings = LocalSGD(steps=25, batch_size=10, learning_rate=0.05, retry_step=0.3)
    looped, params = built(LoopedUpdate, model, data, settings)
    vmapped, _ = built(VmappedUpdate, model, data, settings)
    compiled = choose(model, data, settings, engine="compiled").update
    expected = looped(params, CLIENTS[:3], 0, key=0, radius=1.0)
    assert float(expected[0].norm()) > 0.2
    assert float(expected[1].norm()) < 0.1
    for update in (vmapped, compiled):
        found = update(params, CLIENTS[:3], 0, key=0, radius=1.0)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def rows_of(settings, data, clients, key):
    """The schedule taken apart: each client's rows, step by step."""
    order, groups = schedule(settings, data, clients, key)
    by_place = dict(zip(order.tolist(), (rows for group in groups for rows in group), strict=True))
    return [by_place[place] for place in range(len(clients))]


def test_a_clients_batches_do_not_depend_on_who_else_is_in_the_block():
    _, data = model_and_data("linear")
    everyone = rows_of(local(), data, CLIENTS, key=9)
    for j in CLIENTS:
        (alone,) = rows_of(local(), data, np.array([j]), key=9)
        assert np.array_equal(alone, everyone[j])


def test_every_epoch_sees_every_sample_once_in_a_new_order():
    _, data = model_and_data("linear")
    (rows,) = rows_of(local(epochs=3, batch_size=5), data, np.array([3]), key=4)
    own = np.arange(data.starts[3], data.starts[3] + 12)
    passes = [epoch[epoch >= 0] for epoch in rows.reshape(3, -1)]
    assert all(np.array_equal(np.sort(epoch), own) for epoch in passes)
    assert not np.array_equal(passes[0], passes[1])


def test_steps_are_exactly_so_many_for_every_client_with_data():
    _, data = model_and_data("linear")
    rows = rows_of(LocalSGD(steps=5, batch_size=4), data, CLIENTS, key=0)
    assert [len(r) for r in rows] == [5 if size else 0 for size in SIZES]
    assert all((r >= 0).any(axis=1).all() for r in rows)


def test_most_steps_cut_the_passes_of_large_clients_alone():
    _, data = model_and_data("linear")
    whole = rows_of(LocalSGD(epochs=2, batch_size=4), data, CLIENTS, key=0)
    cut = rows_of(LocalSGD(epochs=2, most_steps=3, batch_size=4), data, CLIENTS, key=0)
    assert {len(rows) for rows in whole} > {0, 2, 4}
    assert [len(rows) for rows in cut] == [min(len(rows), 3) for rows in whole]
    for all_of_them, first in zip(whole, cut, strict=True):
        assert np.array_equal(first, all_of_them[:3])


def test_one_large_client_does_not_make_the_others_large():
    """200 clients of 10 samples and one of 20,000: indices for what is seen, no more."""
    sizes = np.array([10] * 200 + [20_000])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    data = ClientData(torch.zeros(22_000, 1), torch.zeros(22_000), starts, sizes)
    _, groups = schedule(local(batch_size=10), data, np.arange(201), key=1)
    assert sum(group.size for group in groups) == 2 * 22_000


def test_padding_never_carries_another_persons_data():
    """Client 0 is poison; the others, some of them padded, must not notice."""
    model, data = model_and_data("linear")
    vmapped, params = built(VmappedUpdate, model, data, local())
    clean = vmapped(params, CLIENTS, 0, key=2, radius=0.5)
    features = data.features.clone()
    features[: SIZES[0]] = math.nan
    poisoned = ClientData(features, data.targets, data.starts, data.sizes)
    vmapped, _ = built(VmappedUpdate, model, poisoned, local())
    dirty = vmapped(params, CLIENTS, 0, key=2, radius=0.5)
    assert dirty[0].isnan().any()
    assert torch.equal(dirty[1:], clean[1:])


def test_projection_moves_only_what_is_outside():
    weights = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    project([weights[:, :1], weights[:, 1:]], [torch.zeros(1), torch.zeros(1)], 1.0)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 3}, "give exactly one of them"),
        ({"epochs": None}, "give exactly one of them"),
        ({"epochs": 0}, r"local\.epochs must be > 0"),
        ({"most_steps": 0}, r"local\.most_steps must be > 0"),
        ({"epochs": None, "steps": 3, "most_steps": 5}, "leave one of them out"),
        ({"batch_size": 0}, r"local\.batch_size must be > 0"),
        ({"learning_rate": -1.0}, r"local\.learning_rate must be a finite number > 0"),
        ({"decay": 1.5}, r"local\.decay must be in"),
        ({"weight_decay": -0.1}, r"local\.weight_decay must be a finite number >= 0"),
        ({"overshoot": 0.0}, r"local\.overshoot must be a finite number > 0"),
        ({"overshoot": 8.0, "retry_step": 0.3}, "both say when a client trains again"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        local(**changes)


@pytest.mark.parametrize("far", [1e2, 1e6, 1e8])
def test_from_however_far_projection_leads_to_the_ball(far):
    centre, way = torch.randn(50), torch.randn(50)
    weights = (centre + far * way / way.norm())[None]
    project([weights], [centre], 0.1)
    assert (weights[0] - centre).norm() == pytest.approx(0.1, rel=1e-3)


def test_a_short_batch_is_filled_with_ones_own_sample():
    sizes = np.array([7, 4, 2, 0])
    data = ClientData(torch.zeros(13), torch.zeros(13), np.cumsum(sizes) - sizes, sizes)
    clients = np.array([2, 0, 1])
    order, groups = schedule(LocalSGD(epochs=3, batch_size=4), data, clients, 7)
    rows = [own for group in groups for own in group]
    for client, own in zip(clients[order], rows, strict=True):
        seen = np.where(own < 0, ~own, own)
        low = data.starts[client]
        assert low <= seen.min() <= seen.max() < low + sizes[client]
        assert (own >= 0).sum() == 3 * sizes[client]


def people_of(*sizes):
    """Random samples of so many people."""
    rng, starts = torch.Generator().manual_seed(4), np.cumsum([0, *sizes[:-1]])
    features = torch.randn(sum(sizes), 5, generator=rng)
    targets = torch.randint(3, (sum(sizes),), generator=rng)
    return ClientData(features, targets, starts, np.array(sizes))


def test_a_batch_of_millions_takes_no_more_than_a_client_has():
    """20,000,000 took 9.5 GB for people of ten samples."""
    data = people_of(10, 10, 700)
    _, groups = schedule(LocalSGD(epochs=2, batch_size=20_000_000), data, np.arange(3), key=5)
    assert [group.shape for group in groups] == [(2, 2, 256), (1, 2, 1024)]
    assert [int((group >= 0).sum()) for group in groups] == [2 * 2 * 10, 2 * 700]


def test_clients_of_other_widths_change_nothing():
    """A client's padding follows from its own samples: to the last bit the same in any company."""
    data, settings = people_of(10, 600, 10, 3000), LocalSGD(epochs=2, batch_size=10**7)
    model = torch.nn.Linear(5, 3)
    vmapped, params = built(VmappedUpdate, model, data, settings)
    looped, _ = built(LoopedUpdate, model, data, settings)
    together = vmapped(params, np.arange(4), 0, key=1, radius=0.3)
    alone = torch.cat([vmapped(params, np.array([j]), 0, key=1, radius=0.3) for j in range(4)])
    torch.testing.assert_close(together, looped(params, np.arange(4), 0, key=1, radius=0.3))
    assert torch.equal(together[[1, 3]], alone[[1, 3]])
