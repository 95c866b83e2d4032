"""Which engine trains, that people hear why, and that nobody's samples decide it."""

from __future__ import annotations

import logging
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpfedls import ClientData, InputError, LazyClients
from dpfedls.clipping import Bound
from dpfedls.engine import ENGINES, choose
from dpfedls.engine.engine import Engine
from dpfedls.engine.layers import (
    convolution_options,
    plain_padding,
    plain_window,
    pool_options,
)
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.engine.probe import MadeUp, _alike, _rounded
from dpfedls.parameters import Layout
from dpfedls.people.checks import check_samples
from dpfedls.people.losses import cross_entropy
from federations import local


def people(features=None, targets=None) -> ClientData:
    """Three clients of five samples."""
    torch.manual_seed(0)
    features = torch.randn(15, 6) if features is None else features
    targets = torch.randint(3, (15,)) if targets is None else targets
    return ClientData(features, targets, np.array([0, 5, 10]), np.array([5, 5, 5]))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(4, 3), nn.GRU(3, 3, batch_first=True)

    def forward(self, tokens):
        return self.gru(self.embed(tokens))[0][:, -1]


def test_an_engine_that_cannot_run_says_which_layer_and_what_to_do():
    data = people(torch.randint(4, (15, 6)))
    for engine in ("compiled", "vmapped"):
        with pytest.raises(InputError) as caught:
            choose(Recurrent(), data, local(), engine=engine)
        said = str(caught.value)
        assert said.startswith(f"engine = '{engine}' cannot train this model, not {engine}: ")
        assert said.endswith("use engine = 'auto', which finds one that can")
        assert "\n" not in said
    assert "GRU cannot (RuntimeError: Batching rule not implemented" in said
    for engine in (*ENGINES, "auto"):
        assert choose(nn.Linear(6, 3), people(), local(), engine=engine).name == (
            "compiled" if engine == "auto" else engine
        )
    with pytest.raises(InputError, match="unknown engine 'vmaped'; did you mean 'vmapped'"):
        choose(nn.Linear(6, 3), people(), local(), engine="vmaped")
    with pytest.raises(InputError, match="block_size must be > 0"):
        choose(nn.Linear(6, 3), people(), local(), block_size=0)


@pytest.mark.parametrize(
    ("loss", "remedy"),
    [
        (nn.CrossEntropyLoss(), "use reduction='none'"),
        (lambda o, t: cross_entropy(o, t)[:, None], r"squeeze it: loss\(outputs, targets\)"),
        (lambda o, t: (o - t[:, None]).square(), r"average over the other dimensions"),
        (lambda o, t: cross_entropy(o, t)[:1], "its first and only dimension must be"),
        (lambda o, t: float(o.detach().sum()), "loss gave a float; training needs a tensor"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "looped"])
def test_a_loss_of_the_wrong_shape_is_told_how_to_get_the_right_one(loss, remedy, engine):
    def train():
        made = choose(nn.Linear(6, 3), people(), local(), loss, engine=engine)
        made.clipped_total(torch.zeros(21), np.arange(3), 0, 0, Bound(1.0))

    with pytest.raises(InputError, match=remedy):
        train()


def test_nobodys_samples_decide_which_engine_trains():
    """Only shapes and dtypes do: with everybody's values broken the choice is the same."""
    models = [nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 3), nn.Softmin(dim=1))]
    for model in models:
        broken = people(torch.full((15, 6), math.nan), torch.full((15,), -7))
        made, other = (choose(model, data, local()) for data in (people(), broken))
        assert (made.name, made.reason) == (other.name, other.reason)
    made = [MadeUp.like(data, torch.device("cpu")) for data in (people(), broken)]
    assert torch.equal(made[0].features, made[1].features)
    assert torch.equal(made[0].targets, made[1].targets)
    assert made[0].features.std() > 0.1  # of zeros, an engine's first layer would learn nothing


class BatchNormed(nn.Module):
    """Without running statistics, but each sample's output depends on its batch."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(x))


def test_what_fills_up_a_batch_must_not_change_what_is_learned():
    made = choose(BatchNormed(), people(), local())
    assert made.name == "looped"
    assert "it learns otherwise from a short batch" in made.reason


def test_where_rounding_alone_changes_an_update_a_gap_is_no_fault():
    """Of a black image every pixel is its window's maximum: which one pooling takes is luck."""
    expected = torch.tensor([[1.0, 0.0]])
    other_pixel, same_pixel = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.001, 0.0]])
    assert _alike(other_pixel, expected, nearby=other_pixel, rounding=0.2)
    assert not _alike(other_pixel, expected, nearby=same_pixel, rounding=0.2)
    weights = torch.linspace(-1, 1, 10_000)
    assert 0.0038 < float((_rounded(weights, 0.2) / weights - 1).std()) < 0.0042  # bfloat16's bits


class Attentive(nn.Module):
    """Token 0 is padding; where there is nothing else, attention has nothing to look at."""

    def __init__(self, kept: int):
        super().__init__()
        self.words, self.kept = nn.Embedding(9, 8), kept
        self.layer = nn.TransformerEncoderLayer(8, 1, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        padding = (x == 0) & (torch.arange(x.shape[1]) >= self.kept)
        return self.head(self.layer(self.words(x), src_key_padding_mask=padding).mean(dim=1))


def test_a_padding_mask_that_may_leave_nothing_is_told_how_to_train_faster():
    tokens = people(torch.ones(15, 4).long(), torch.zeros(15).long())
    made = choose(Attentive(kept=0), tokens, local())
    assert made.name == "looped"
    assert "samples of zeros" in made.reason
    assert "mask[:, 0] = False" in made.reason
    assert choose(Attentive(kept=1), tokens, local()).name == "vmapped"


class Counter(nn.Linear):
    """Keeps to itself how often it ran, and learns by it."""

    def __init__(self):
        super().__init__(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input):  # noqa: A002 - torch's name
        self.seen += 1
        return super().forward(input) * self.seen


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="needs torch 2.9")
def test_who_sets_the_precision_of_convolutions_alone_can_train():
    """Torch then refuses to say what holds for all layers, which the probe would ask."""
    convolutions = torch.backends.cudnn.conv
    before, convolutions.fp32_precision = convolutions.fp32_precision, "ieee"
    try:
        assert choose(nn.Linear(6, 3), people(), local(), engine="vmapped").name == "vmapped"
    finally:
        convolutions.fp32_precision = before


def test_what_a_model_keeps_passes_from_no_client_to_another():
    model, data = Counter(), people()
    made = choose(model, data, local())
    assert (made.name, "buffer 'seen' changes" in made.reason) == ("looped", True)
    params = Layout.of(model).read(model)
    together = made.update(params, np.arange(3), 0, 3, 0.5)
    for j in range(3):
        assert torch.equal(made.update(params, np.array([j]), 0, 3, 0.5)[0], together[j])
    assert float(model.seen) == 0.0


class Packed(nn.Module):
    """Cannot take the made-up lengths, which are 0."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 3, batch_first=True)

    def forward(self, lengths):
        steps = torch.ones(len(lengths), 4, 1)
        packed = nn.utils.rnn.pack_padded_sequence(
            steps, lengths[:, 0], batch_first=True, enforce_sorted=False
        )
        return self.gru(packed)[1][-1]


def test_a_model_that_only_real_samples_suit_is_trained_one_client_after_another(caplog):
    made = choose(model := Packed(), people(torch.randint(1, 5, (15, 1))), local())
    assert made.name == "looped"
    assert "the model fails on made-up samples, GRU cannot" not in made.reason
    assert "the model fails on made-up samples, Packed cannot" in made.reason
    assert caplog.records[-1].levelno == logging.WARNING
    params = Layout.of(model).read(model)
    assert made.clipped_total(params, np.arange(3), 0, 3, Bound(0.5)).norm() > 0.1


@pytest.mark.parametrize("body", [nn.Identity(), nn.Softmin(dim=-1)])  # a chain, and none
def test_a_token_beyond_the_vocabulary_reads_and_trains_no_other_clients_rows(body):
    """vmap's own rule would take the next client's row; here it spoils its owner's update alone."""
    data = people(torch.randint(4, (15, 6)))
    model = nn.Sequential(nn.Embedding(4, 3), body, nn.Flatten(), nn.Linear(18, 3))
    params = Layout.of(model).read(model)
    strange = replace(data, features=data.features.clone())
    strange.features[5:10, 2] = torch.tensor([4, -1, 5, 4, 7])  # the second client
    updates = [
        choose(model, some, local(), engine="vmapped").update(params, np.arange(3), 0, 3, 0.5)
        for some in (data, strange)
    ]
    assert torch.equal(updates[0][[0, 2]], updates[1][[0, 2]])
    assert updates[1][1].isnan().any()
    total = replace(choose(model, strange, local(), engine="vmapped"), block_size=2).clipped_total(
        params, np.arange(3), 0, 3, Bound(0.2)
    )
    without = choose(model, strange, local(), engine="vmapped").clipped_total(
        params, np.array([0, 2]), 0, 3, Bound(0.2)
    )
    torch.testing.assert_close(total, without)


class Picky(nn.Linear):
    def forward(self, input):  # noqa: A002 - torch's name
        if (input > 9).any():
            raise RuntimeError("a number\nabove nine")
        return super().forward(input)


def test_what_torch_says_in_training_comes_in_one_line_and_names_the_client():
    data = people()
    data.features[7] = 10.0
    made = choose(Picky(6, 3), data, local(), block_size=1)
    with pytest.raises(InputError) as caught:
        made.clipped_total(torch.zeros(21), np.arange(3), 4, 3, Bound(0.5))
    assert str(caught.value) == (
        "the looped engine could not train client 1 in round 4 (RuntimeError: a number); make "
        "model, loss and these clients' samples fit"
    )


def test_a_fault_of_a_faster_engine_is_not_blamed_on_samples_alone():
    def update(*_: object) -> Tensor:
        return torch.zeros(25).split([25, 5])[0]

    made = Engine("vmapped", "", update, people(), 2)
    with pytest.raises(
        InputError, match=r"samples fit; if they do, .* engine = .looped. may train"
    ):
        made.clipped_total(torch.zeros(21), np.arange(2), 0, 0, Bound(0.5))


def short_of_memory(fits, failing="stop"):
    """An engine that runs out of memory unless ``fits`` says that a block has room."""
    real = choose(nn.Linear(6, 3), people(), local(), engine="vmapped")

    def update(params, block, *rest):
        if not fits(block):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real.update(params, block, *rest)

    return replace(real, update=update, failing=failing)


@pytest.mark.parametrize("failing", ["stop", "zero"])
@pytest.mark.parametrize("bound", [Bound(0.5), Bound(0.5, indicator=0.1)])
def test_too_many_clients_for_the_memory_train_by_halves(failing, bound, caplog):
    asked = (torch.zeros(21), np.arange(3), 4, 3, bound)
    tried = []
    found = short_of_memory(lambda block: tried.append(len(block)) or len(block) < 2, failing)
    expected = short_of_memory(lambda _: True).clipped_total(*asked)
    caplog.clear()
    torch.testing.assert_close(found.clipped_total(*asked), expected)
    assert tried == [3, 2, 1, 1, 1]
    assert not caplog.text  # how many fit tells how many were drawn


def test_what_an_error_holds_is_given_back_before_a_half_is_tried():
    alive = weakref.WeakSet()

    def fits(block):
        held = torch.zeros(9)  # lives as long as the frame, and that as long as the error
        assert not alive
        alive.add(held)
        if len(block) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return True

    short_of_memory(fits).clipped_total(torch.zeros(21), np.arange(3), 4, 3, Bound(0.5))


def test_one_client_who_does_not_fit_is_zero_when_deployed_and_no_number_is_told():
    """Unless the one who was tried before the start fits no more either: then it stops."""
    asked = (torch.zeros(21), np.arange(3), 4, 3, Bound(0.5, indicator=0.1))
    without_last = lambda block: 2 not in block  # noqa: E731
    found = short_of_memory(without_last, "zero").clipped_total(*asked)
    two = short_of_memory(lambda _: True).clipped_total(asked[0], np.arange(2), *asked[2:])
    torch.testing.assert_close(found, two)
    for made in (
        short_of_memory(without_last),
        short_of_memory(lambda _: False),
        short_of_memory(lambda _: False, "zero"),
    ):
        with pytest.raises(InputError, match="one client alone does not fit") as caught:
            made.clipped_total(*asked)
        assert not any(letter.isdigit() for letter in str(caught.value))


def test_where_nobody_has_a_sample_nothing_is_learned():
    data = replace(people(), sizes=np.zeros(3, dtype=np.int64))
    for model in (nn.Linear(6, 3), Picky(6, 3)):
        made = choose(model, data, local())
        assert not made.clipped_total(torch.zeros(21), np.arange(3), 0, 0, Bound(1.0)).any()


def test_gradients_that_are_sparse_or_missing_count_as_numbers():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.spare = nn.Embedding(4, 3, sparse=True), nn.Linear(2, 2)

        def forward(self, tokens):
            return self.rows(tokens).sum(dim=1)

    model = Spare()
    layout = Layout.of(model)
    update = LoopedUpdate(model, cross_entropy, layout, people(torch.randint(4, (15, 6))), local())
    found = layout.split(update(layout.read(model), np.arange(3), 0, 0, 9.0))
    assert found["rows.weight"].norm() > 0.1
    assert not found["spare.weight"].any()


CONVOLUTIONS = [
    (nn.Conv2d(2, 3, 3), (0, 0)),
    (nn.Conv2d(2, 3, (3, 2), padding=(2, 1)), (2, 1)),
    (nn.Conv2d(2, 3, 3, padding="valid"), (0, 0)),
    (nn.Conv2d(2, 3, 3, padding="same"), None),
    (nn.Conv2d(2, 3, 1, padding=1), None),
    (nn.Conv2d(2, 3, 3, stride=2), None),
    (nn.Conv2d(2, 3, 3, dilation=(1, 2)), None),
    (nn.Conv2d(2, 2, 3, groups=2), None),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), None),
]
POOLS = [
    (nn.MaxPool2d(2), 2),
    (nn.MaxPool2d((3, 3), ceil_mode=True), 3),
    (nn.MaxPool2d(2, stride=(2, 2)), 2),
    (nn.MaxPool2d(4), None),  # does not cover 6 × 12 exactly
    (nn.MaxPool2d((2, 3)), None),
    (nn.MaxPool2d(2, stride=1), None),
    (nn.MaxPool2d(2, padding=1), None),
    (nn.MaxPool2d(2, dilation=2), None),
    (nn.MaxPool2d(2, return_indices=True), None),
]


@pytest.mark.parametrize(("layer", "padding"), CONVOLUTIONS)
def test_which_convolutions_are_plain(layer, padding):
    assert plain_padding(layer.kernel_size, *convolution_options(layer)) == padding
    if padding is not None:  # and then the padding is all that matters
        images = torch.randn(1, 2, 6, 12)
        same = nn.functional.conv2d(images, layer.weight, layer.bias, padding=padding)
        assert torch.equal(layer(images), same)


@pytest.mark.parametrize(("layer", "side"), POOLS)
def test_which_pools_are_plain(layer, side):
    assert plain_window((1, 2, 6, 12), *pool_options(layer)) == side
    if side is not None:  # and then the side is all that matters
        images = torch.randn(1, 2, 6, 12)
        assert torch.equal(layer(images), nn.functional.max_pool2d(images, side))


class Person(Dataset):
    """Five samples, of which each is ``made``; None is an error of the loader."""

    def __init__(self, made=None, size=5):
        self.made, self.size = made, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if self.made is None:
            raise OSError("unreadable")
        return self.made(i), i % 3


class MeanOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 3)

    def forward(self, tokens):
        return self.embed(tokens).mean(1)


@pytest.mark.parametrize("name", ["looped", "vmapped"])
def test_where_failing_means_zero_a_malformed_person_is_like_an_absent_one(name):
    """Whoever is malformed changes nobody else's part in the sum, and is not named."""
    malformed = [
        Person(),
        Person(lambda i: torch.full((6,), math.nan)),
        Person(lambda i: torch.zeros(5)),
        Person(lambda i: torch.zeros(6) if i else torch.zeros(5)),
    ]
    sound = [Person(lambda i, k=k: torch.arange(6.0).sin() * (i + k)) for k in range(3)]
    absent = [Person(size=0)] * len(malformed)
    totals, model = [], nn.Linear(6, 3)
    for others in (malformed, absent):
        data = LazyClients([*sound[:2], *others, sound[2]])
        check_samples(model, data, "clients")
        engine = replace(choose(model, data, local(), engine=name), failing="zero")
        asked = (Layout.of(model).read(model), np.arange(7), 0, 0, Bound(1.0, 0.1))
        totals.append(engine.clipped_total(*asked))
        if others is malformed:
            with pytest.raises(InputError, match=r"clients\[|client"):
                replace(engine, failing="stop").clipped_total(*asked)
    assert totals[1].any()
    torch.testing.assert_close(*totals, rtol=1e-6, atol=1e-8)


def test_people_of_unlike_shapes_count_where_failing_means_zero():
    """Samples that cannot be stacked are nobody's fault: each trains alone."""
    longer = Person(lambda i: torch.arange(7) + i % 2)
    model, totals = MeanOfWords(), []
    for name in ("looped", "vmapped"):
        data = LazyClients([Person(lambda i: torch.arange(4) + i), longer])
        engine = replace(choose(model, data, local(), engine=name), failing="zero")
        asked = (Layout.of(model).read(model), np.arange(2), 0, 0, Bound(1.0))
        totals.append(engine.clipped_total(*asked))
        one = engine.clipped_total(asked[0], np.arange(1), *asked[2:])
        assert not torch.allclose(totals[-1], one)
    torch.testing.assert_close(*totals, rtol=1e-4, atol=1e-6)
