from __future__ import annotations

import torch
from torch import nn

from dpfedls.parameters import Layout


def test_split_and_join_undo_each_other_and_split_shares_memory():
    layout = Layout(("a", "b", "c"), ((2, 3), (), (4,)))
    vector = torch.arange(11.0)
    pieces = layout.split(vector)
    assert [tuple(p.shape) for p in pieces.values()] == [(2, 3), (), (4,)]
    assert torch.equal(layout.join(pieces), vector)
    pieces["c"][0] = 99
    assert vector[7] == 99
    stacked = layout.split(torch.stack([vector, vector + 1]))
    assert stacked["a"].shape == (2, 2, 3)


def test_frozen_parameters_are_no_part_of_the_vector():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].weight.requires_grad_(False)
    layout = Layout.of(model)
    assert layout.names == ("0.bias", "1.weight", "1.bias")
    assert layout.dim == 7
    layout.write(torch.arange(7.0), model)
    assert torch.equal(layout.read(model), torch.arange(7.0))
