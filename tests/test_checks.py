from __future__ import annotations

import logging
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpfedls import ClientData, InputError, LazyClients, LocalSGD
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.losses import cross_entropy
from dpfedls.tasks.models import LSTM, character_lstm, cnn


class Positions(nn.Module):
    """A small transformer on tokens with a constant buffer and, if asked, tied weights."""

    def __init__(self, tokens=11, width=8, length=6, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.register_buffer("positions", torch.linspace(0, 1, length)[:, None])
        self.places = nn.Embedding(99, width)  # more places than there are tokens
        self.block = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.output = nn.Linear(width, tokens)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens):
        places = self.places(torch.arange(tokens.shape[-1]))
        return self.output(self.block(self.embedding(tokens) + places + self.positions)[:, -1])


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.abs().max()))
        return self.layer(x)


class Dropping(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x))


def not_finite() -> nn.Module:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.bias, float("nan"))
    return model


def pair(rows=6, width=2, classes=2):
    return torch.randn(rows, width), torch.arange(rows) % classes


# ---- models


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), r"'1' \(BatchNorm1d\).*GroupNorm"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)).eval(),
            r"'1' \(BatchNorm1d\).*GroupNorm",
        ),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
            r"'1' \(Dropout\) has dropout 0.5.*prepare",
        ),
        (nn.MultiheadAttention(4, 2, dropout=0.1), r"\(MultiheadAttention\) has dropout 0.1"),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), r"\(LSTM\) has dropout 0.1"),
        (nn.TransformerEncoderLayer(4, 2, 8), "has dropout 0.1"),
        (nn.ReLU(), "no parameter"),
        (nn.Linear(2, 2).requires_grad_(False), "no parameter"),
        (not_finite(), "parameter 'bias' is not finite"),
        (nn.Linear(2, 2).half(), r"use model\.float\(\)"),
        (nn.LazyLinear(2), "has no shape yet"),
    ],
)
def test_what_must_not_be_trained_is_refused_by_name(model, message):
    with pytest.raises(InputError, match=message) as caught:
        check_model(model)
    assert "\n" not in str(caught.value)


def test_constants_are_allowed():
    frozen = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval()
    model = nn.Sequential(frozen, nn.Linear(4, 2))
    check_model(model)
    check_samples(model, pair(), "test")
    model = Positions()
    check_model(model)
    check_samples(model, (torch.randint(11, (4, 6)), torch.arange(4)), "test")


def test_recurrent_layers_are_allowed_and_a_line_says_what_is_faster(caplog):
    with caplog.at_level(logging.WARNING, logger="dpfedls"):
        check_model(nn.GRU(2, 2))
    assert "one client at a time; dpfedls.prepare(model)" in caplog.text


def test_the_papers_models_are_trainable_and_of_the_papers_size():
    for model, size in ((cnn(), 3_431_754), (character_lstm(80), 819_920)):
        check_model(model)
        assert sum(p.numel() for p in model.parameters()) == size


def test_the_written_out_lstm_is_torchs():
    ours, theirs = LSTM(5, 7, layers=2), nn.LSTM(5, 7, num_layers=2, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 11, 5)
    torch.testing.assert_close(ours(x), theirs(x)[0])


def test_a_buffer_that_changes_when_the_model_runs_is_refused_and_the_model_left_alone():
    model = Counting()
    check_model(model)
    with pytest.raises(InputError, match="buffer 'largest' changes when the model runs"):
        check_samples(model, pair(), "test")
    assert model.largest == 0


def test_a_model_that_draws_at_random_is_refused_and_draws_nothing_of_ours():
    model, samples = Dropping(2, 40), (torch.ones(4, 2), torch.zeros(4).long())
    before = torch.get_rng_state()
    with pytest.raises(
        InputError, match="differently each time"
    ):  # 160 coins twice the same: never
        check_samples(model, samples, "test")
    assert torch.equal(torch.get_rng_state(), before)


# ---- samples


LABELS = torch.zeros(3).long()


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))


@pytest.mark.parametrize(
    ("model", "samples", "message"),
    [
        (nn.Linear(2, 2), (torch.zeros(0, 2), torch.zeros(0)), "test holds no samples"),
        (nn.Linear(2, 2), (torch.zeros(3, 2), torch.zeros(2)), "3 rows of features but 2 targets"),
        (nn.Linear(2, 2), (torch.full((3, 2), math.inf), torch.zeros(3).long()), "3 samples with"),
        (nn.Linear(2, 2), (torch.zeros(3, 2).long(), LABELS), r"needs floats.*float"),
        (nn.Linear(2, 2), (torch.zeros(3, 5), LABELS), r"shape \(5,\).*given \(2, 5\)"),
        (deep(), pair(), r"module '1.1' \(Linear\), given \(2, 3\), says"),
        (nn.Linear(2, 2), (torch.zeros(3, 2), torch.zeros(3)), "one integer label a sample"),
        (nn.Linear(2, 2), (torch.zeros(3, 2), torch.arange(3)), "labels from 0 to 2.*2 outputs"),
        (nn.Linear(2, 2), (torch.zeros(3, 2), -torch.ones(3).long()), "labels from -1 to -1"),
        (nn.LSTM(2, 2), (torch.zeros(3, 4, 2), LABELS), "returns tuple for 2 samples"),
        (nn.Identity(), (torch.zeros(3), torch.zeros(3).long()), r"returns \(2,\) for 2 samples"),
        (
            Positions(),
            (torch.full((3, 6), 11), torch.zeros(3).long()),
            r"'embedding' \(Embedding, which knows 0 to 10\)",
        ),
        (Positions(), (torch.tensor([[0] * 6, [0] * 6, [-1] * 6]), LABELS), "from -1"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_are_refused_in_one_line(model, samples, message):
    with pytest.raises(InputError, match=message) as caught:
        check_samples(model, samples, "test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layer", [nn.Embedding(10, 4), nn.EmbeddingBag(10, 4)])
def test_a_token_of_the_first_sample_that_is_too_large_is_no_wish_for_floats(layer):
    with pytest.raises(InputError, match="which knows 0 to 9") as caught:
        check_samples(nn.Sequential(layer), (torch.full((4, 6), 12), torch.arange(4)), "test")
    assert "Float" not in str(caught.value)


def test_tokens_are_held_to_the_embedding_that_reads_them_not_to_the_largest():
    """An embedding of 99 places does not excuse token 50 of 11, wherever it stands."""
    tokens = torch.zeros(40, 6, dtype=torch.uint8)
    tokens[37, 4] = 50
    with pytest.raises(InputError, match=r"tokens from 0 to 50, .*'embedding'.* knows 0 to 10"):
        check_samples(Positions(), (tokens, torch.zeros(40)), "test", lambda out, y: out[:, 0])


def test_a_model_with_rules_of_its_own_is_tried_on_the_samples_themselves():
    class OneHot(nn.Linear):
        def forward(self, x):
            if not (x.sum(dim=1) == 1).all():
                raise ValueError("not one-hot")
            return super().forward(x.float())

    check_samples(OneHot(3, 2), (torch.eye(3).long()[[0, 1, 2, 0]], torch.zeros(4).long()), "test")


def test_numpy_samples_and_small_or_wide_floats_are_accepted():
    for kind in (np.float16, np.float32, np.float64):
        check_samples(nn.Linear(2, 2), (np.zeros((3, 2), kind), np.array([0, 1, 0])), "test")


def test_own_losses_have_targets_of_any_shape_and_outputs_of_any_structure():
    class Two(nn.Linear):
        def forward(self, x):
            return {"mean": super().forward(x["a"]), "scale": x["b"]}

    samples = ({"a": torch.zeros(3, 2), "b": torch.ones(3)}, torch.zeros(3, 4, 5))
    good = lambda out, y: y.flatten(1).mean(1) + out["scale"] * out["mean"][:, 0]  # noqa: E731
    check_samples(Two(2, 2), samples, "test", good)
    with pytest.raises(InputError, match=r"loss fails on the model's outputs .*'variance'"):
        check_samples(Two(2, 2), samples, "test", lambda out, y: out["variance"])


# ---- person by person


def population(**bad):
    parts = {j: pair(3) for j in range(5)} | {int(k[1:]): v for k, v in bad.items()}
    return ClientData.from_pairs(parts)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((torch.tensor([[0.0, 0], [0, math.nan]]), torch.zeros(2)), "1 samples with NaN .* row 1"),
        ((torch.zeros(2, 2), torch.tensor([0, 7])), "labels from 0 to 7"),
    ],
)
def test_the_person_at_fault_is_named(bad, message):
    bad = (bad[0], bad[1].long())
    with pytest.raises(InputError, match=rf"clients\[3\] has {message}"):
        check_samples(nn.Linear(2, 2), population(p3=bad), "clients")
    check_samples(nn.Linear(2, 2), population(), "clients")


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_targets_that_are_no_numbers_are_refused_by_person_and_row(broken):
    squares = lambda out, y: (out.squeeze(-1) - y).square()  # noqa: E731
    parts = [(torch.zeros(3, 2), torch.zeros(3)) for _ in range(5)]
    parts[3][1][2] = broken
    said = r" has 1 samples with NaN or infinite targets, the first at row 2"
    with pytest.raises(InputError, match=r"clients\[3\]" + said):
        check_samples(nn.Linear(2, 1), ClientData.from_pairs(parts), "clients", squares)
    with pytest.raises(InputError, match="^test" + said):
        check_samples(nn.Linear(2, 1), parts[3], "test", squares)
    lazy = LazyClients([TensorDataset(*own) for own in parts])
    check_samples(nn.Linear(2, 1), lazy, "clients", squares)
    with pytest.raises(InputError, match=r"clients\[3\]" + said):
        lazy.client(3)


def test_doubles_beyond_float32_are_refused():
    with pytest.raises(InputError, match="test has 1 samples with NaN or infinite features"):
        check_samples(nn.Linear(1, 2), (np.array([[1e39]]), np.array([0])), "test")


@pytest.mark.parametrize(
    ("row", "message"),
    [(0, "Embedding, which knows 0 to 8.* says 'index out"), (2, "has tokens from 1 to 60000, ")],
)
def test_tokens_that_the_model_does_not_know_are_told_of_unsigned_types_too(row, message):
    tokens = np.ones((3, 2), "u2")
    tokens[row, 1] = 60_000
    model = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=message):
        check_samples(model, (tokens, np.zeros(3, "u2")), "test")


def test_a_model_that_torch_has_compiled_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(2, 2))
    for compiled in (scripted, torch.compile(nn.Linear(2, 2))):
        with pytest.raises(InputError, match=r"the model is a .*Module, .*give the nn\.Module"):
            check_model(compiled)


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Linear(2, 2)
    model.kept = (x for x in "a generator")
    with pytest.raises(InputError, match=r"the model cannot be copied .*generator"):
        check_model(model)


def test_masks_where_floats_are_needed_are_told_how_to_become_floats():
    samples = (torch.ones(2, 2, dtype=torch.bool), torch.zeros(2).long())
    with pytest.raises(InputError, match=r"test has features of True and False, .*x\.float\(\)"):
        check_samples(nn.Linear(2, 2), samples, "test")


def test_rows_that_nobody_owns_are_not_looked_at():
    x = torch.zeros(4, 2)
    x[2] = math.nan
    data = ClientData(x, torch.zeros(4).long(), np.array([3, 0]), np.array([1, 2]))
    check_samples(nn.Linear(2, 2), data, "clients")


def test_lazy_people_are_checked_when_they_are_loaded():
    good, bad = pair(), (torch.full((2, 2), math.nan), torch.zeros(2).long())
    data = LazyClients([TensorDataset(*own) for own in (good, bad, good)])
    check_samples(nn.Linear(2, 2), data, "clients")
    data.client(2)
    with pytest.raises(InputError, match=r"clients\[1\] has 2 samples with NaN"):
        data.client(1)
    with pytest.raises(InputError, match=r"clients\[0\].*make model and features fit"):
        check_samples(nn.Linear(3, 2), data.to(torch.device("cpu")), "clients", cross_entropy)


def test_nobody_with_a_sample_is_refused():
    data = ClientData.from_pairs([(torch.zeros(0, 2), torch.zeros(0).long())])
    with pytest.raises(InputError, match="clients hold no samples"):
        check_samples(nn.Linear(2, 2), data, "clients")


def test_a_model_that_changes_its_inputs_is_refused_and_has_changed_nothing():
    class Halves(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(0.5))

    x, y = torch.ones(4, 2), torch.zeros(4).long()
    for data in (ClientData.from_pairs([(x, y)]), (x, y)):
        with pytest.raises(InputError, match=r"changes its inputs in place.*not x\.mul_\(2\)"):
            check_samples(Halves(2, 2), data, "clients")
    assert (x == 1).all()


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_trainings_are_made_shorter_or_not_at_all(factor):
    with pytest.raises(InputError, match=r"local\.shorten = .* would make trainings no shorter"):
        LocalSGD(steps=1, shorten=factor)
