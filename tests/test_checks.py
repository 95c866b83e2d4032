from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfedls import InputError, replace_batch_norm
from dpfedls.checks import check_model
from dpfedls.tasks.models import LSTM, character_lstm, cnn


class WithBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(2))


def not_finite() -> nn.Module:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.bias, float("nan"))
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), r"'1' \(BatchNorm1d\).*GroupNorm"),
        (nn.Sequential(nn.LSTM(2, 2)), r"'0' \(LSTM\).*tasks\.models\.LSTM"),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), r"'1' \(Dropout\).*set its p to 0"),
        (WithBuffer(), "buffer 'mask'"),
        (nn.ReLU(), "no parameter"),
        (nn.Linear(2, 2).requires_grad_(False), "no parameter"),
        (not_finite(), "parameter 'bias' is not finite"),
    ],
)
def test_what_must_not_be_trained_is_refused_by_name(model, message):
    with pytest.raises(InputError, match=message):
        check_model(model)


def test_batch_norm_becomes_group_norm_everywhere_in_a_copy():
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3), nn.Sequential(nn.BatchNorm2d(48)), nn.BatchNorm2d(48)
    )
    nn.init.constant_(model[2].weight, 2.0)
    changed = replace_batch_norm(model)
    check_model(changed)
    assert isinstance(model[2], nn.BatchNorm2d)
    assert (changed[2].num_groups, changed[2].num_channels) == (16, 48)
    assert torch.equal(changed[2].weight, model[2].weight)
    assert isinstance(replace_batch_norm(nn.BatchNorm1d(7, affine=False)), nn.GroupNorm)
    assert changed(torch.randn(2, 3, 5, 5)).shape == (2, 48, 3, 3)


def test_the_papers_models_are_trainable_and_of_the_papers_size():
    check_model(cnn())
    check_model(character_lstm(80))
    assert sum(p.numel() for p in cnn().parameters()) == 3_431_754


def test_the_written_out_lstm_is_torchs():
    ours, theirs = LSTM(5, 7, layers=2), nn.LSTM(5, 7, num_layers=2, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 11, 5)
    torch.testing.assert_close(ours(x), theirs(x)[0])
