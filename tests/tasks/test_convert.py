from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import pack_sequence

import dpfedls
from dpfedls import InputError, prepare, replace_batch_norm
from dpfedls.engine.batching import client_layers
from dpfedls.people.checks import check_model
from dpfedls.tasks.convert import Recurrent
from federations import local, plan


def flat(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [t for part in tree for t in flat(part)]


def total(tree):
    return sum(((k + 1) * t.square()).sum() for k, t in enumerate(flat(tree)))


def start(layer, samples):
    state = torch.randn(layer.num_layers, samples, layer.hidden_size)
    return (state, torch.randn_like(state)) if layer.mode == "LSTM" else state


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_written_out_layers_are_torchs_in_value_and_gradient(kind, batch_first, bias, given):
    torch.manual_seed(0)
    theirs = kind(5, 7, num_layers=2, batch_first=batch_first, bias=bias)
    ours, x = prepare(theirs), torch.randn(3, 11, 5)
    assert isinstance(ours, Recurrent)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    hx = start(theirs, 3 if batch_first else 11) if given else None
    expected, found = theirs(x, hx), ours(x, hx)
    assert isinstance(found, tuple)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(total(out), m.parameters())
                 for out, m in ((found, ours), (expected, theirs))]  # fmt: skip
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))  # one sequence alone


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_written_out_layers_train_many_clients_at_once(kind):
    """Each client's gradient from its own weights and samples, as if it were alone."""
    torch.manual_seed(0)
    model, x = prepare(kind(3, 4, batch_first=True)), torch.randn(5, 2, 6, 3)
    own = {n: p.detach() + torch.randn(5, *p.shape) for n, p in model.named_parameters()}

    def loss(weights, x):
        return total(functional_call(model, weights, (x,)))

    leaves = {n: w.clone().requires_grad_() for n, w in own.items()}
    with client_layers():
        vmap(loss)(leaves, x).sum().backward()
    for j in range(5):
        alone = {n: w[j].clone().requires_grad_() for n, w in own.items()}
        loss(alone, x[j]).backward()
        for name, w in alone.items():
            torch.testing.assert_close(leaves[name].grad[j], w.grad, rtol=1e-4, atol=1e-5)


def test_one_call_makes_a_model_trainable_and_leaves_the_given_one(caplog):
    model = nn.ModuleDict(
        {
            "norm": nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)),
            "drop": nn.Dropout2d(0.3),
            "block": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1),
            "memory": nn.LSTM(4, 4, num_layers=2, dropout=0.2),
            "both": nn.GRU(4, 4, bidirectional=True, num_layers=2, dropout=0.2),
        }
    )
    with caplog.at_level(logging.INFO, logger="dpfedls"):
        changed = prepare(model)
    check_model(changed)
    for word in ("norm.1: BatchNorm2d → GroupNorm", "drop: dropout 0", "memory: LSTM → written"):
        assert word in caplog.text
    assert isinstance(changed["memory"], Recurrent)
    assert type(changed["both"]) is nn.GRU
    assert model["drop"].p == 0.3
    assert model["block"].self_attn.dropout == 0.1
    assert isinstance(model["norm"][1], nn.BatchNorm2d)
    with pytest.raises(InputError):
        check_model(model)


def test_a_trainable_model_is_copied_as_it_is(caplog):
    frozen = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    model = nn.Sequential(frozen, nn.Linear(4, 2))
    with caplog.at_level(logging.INFO, logger="dpfedls"):
        changed = prepare(model)
    assert "prepare changed nothing" in caplog.text
    assert isinstance(changed[0][1], nn.BatchNorm1d)
    x = torch.randn(5, 3)
    torch.testing.assert_close(changed(x), model(x))


def test_a_module_used_twice_and_tied_weights_stay_one():
    shared = nn.LSTM(4, 4)
    model = nn.ModuleList([shared, nn.ModuleList([shared]), nn.Embedding(5, 4), nn.Linear(4, 5)])
    model[3].weight = model[2].weight
    changed = prepare(model)
    assert changed[0] is changed[1][0]
    assert isinstance(changed[0], Recurrent)
    assert changed[3].weight is changed[2].weight
    assert len(list(changed.parameters())) == len(list(model.parameters()))


def test_packed_sequences_are_refused_in_words():
    with pytest.raises(InputError, match=r"PackedSequence.*pad the sequences"):
        prepare(nn.GRU(2, 2))(pack_sequence([torch.zeros(3, 2), torch.zeros(1, 2)]))


def test_batch_norm_becomes_group_norm_everywhere_in_a_copy():
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3), nn.Sequential(nn.BatchNorm2d(48)), nn.BatchNorm2d(48)
    )
    nn.init.constant_(model[2].weight, 2.0)
    model[2].bias.requires_grad_(False)
    changed = replace_batch_norm(model)
    check_model(changed)
    assert isinstance(model[2], nn.BatchNorm2d)
    assert (changed[2].num_groups, changed[2].num_channels) == (16, 48)
    assert torch.equal(changed[2].weight, model[2].weight)
    assert not changed[2].bias.requires_grad
    assert isinstance(replace_batch_norm(nn.BatchNorm1d(7, affine=False)), nn.GroupNorm)
    assert changed(torch.randn(2, 3, 5, 5)).shape == (2, 48, 3, 3)


@pytest.mark.parametrize("channels", [16, 32, 64])
def test_flat_samples_keep_what_they_say(channels):
    """A group of one number would be normalised to zero, whatever it was."""
    x = torch.randn(4, channels)
    normal = replace_batch_norm(nn.BatchNorm1d(channels))(x)
    centred = x - x.mean(dim=1, keepdim=True)
    correlation = torch.cosine_similarity(normal, centred, dim=1)
    torch.testing.assert_close(correlation, torch.ones(4))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_prepared_recurrent_model_trains(kind):
    """It learns to say which of three tokens came first, and keeps torch's names of weights."""

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.memory = nn.Embedding(3, 6), kind(6, 8, batch_first=True)
            self.drop, self.output = nn.Dropout(0.2), nn.Linear(16, 3)

        def forward(self, tokens):
            states, last = self.memory(self.embedding(tokens))
            last = last[1] if isinstance(last, tuple) else last  # the cell
            return self.output(self.drop(torch.cat([states[:, 0], last[0]], dim=-1)))

    torch.manual_seed(0)
    tokens = torch.randint(3, (20, 12, 5))
    result = dpfedls.train(
        model=prepare(Reader()),
        clients=[(own, own[:, 0]) for own in tokens],
        plan=plan(noise_multiplier=0, clip_norm=5.0, rounds=6),
        local=local(epochs=4, learning_rate=0.5),
        test=(tokens[0], tokens[0][:, 0]),
    )
    assert result.accuracy == 1.0
    Reader().load_state_dict(result.model.state_dict())
