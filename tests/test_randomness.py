from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from scipy import stats

from dpfedls import InputError
from dpfedls.people.orders import shuffled
from dpfedls.randomness import SeededStreams, SystemStreams


def test_streams_are_functions_of_seed_purpose_and_round():
    def first(seed, purpose, round_):
        return SeededStreams(seed).generator(purpose, round_).random()

    same = first(3, "noise", 7)
    assert first(3, "noise", 7) == same
    others = [first(4, "noise", 7), first(3, "sampling", 7), first(3, "noise", 8)]
    assert len({same, *others}) == 4


def test_a_purpose_that_is_none_is_refused_by_name():
    with pytest.raises(
        InputError, match="unknown purpose of a random stream 'data'; known: sampling, sh"
    ):
        SeededStreams(0).generator("data")


def test_seeded_noise_repeats_and_its_nonce_says_so():
    noise = [SeededStreams(1).noise(2)(50, torch.device("cpu")) for _ in range(2)]
    assert torch.equal(*noise)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    one, other = SeededStreams(1), SeededStreams(1)
    assert one.nonce(2, cpu) == other.nonce(2, cpu) != one.nonce(3, cpu)
    assert one.nonce(2, cpu) != one.nonce(2, cuda)  # whose generator draws other numbers
    assert SystemStreams().nonce(2, cpu) != SystemStreams().nonce(2, cpu)


def test_deployed_sampling_and_shuffling_do_not_repeat():
    a, b = SystemStreams(), SystemStreams()
    assert a.sampling(0).random() != b.sampling(0).random()
    assert a.shuffling(0) != a.shuffling(0)


def test_each_order_is_a_permutation_and_depends_on_client_and_epoch_only():
    clients = np.array([4, 9, 2])
    orders = shuffled(77, clients, size=13, epochs=3)
    assert (np.sort(orders, axis=-1) == np.arange(13)).all()
    assert np.array_equal(shuffled(77, clients[1:2], 13, 3)[0], orders[1])
    assert len({orders[i, e].tobytes() for i in range(3) for e in range(3)}) == 9


def test_shuffling_is_uniform():
    """All 24 orders of four samples equally often; false alarm 1e-6."""
    orders = shuffled(5, np.arange(24_000), size=4, epochs=1)[:, 0]
    _, counts = np.unique(orders @ np.array([64, 16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="seed must be >= 0"):
        SeededStreams(-1)


def test_deployed_noise_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "randomgen", None)
    with pytest.raises(InputError, match=r"pip install 'dpfedls\[secure\]'"):
        SystemStreams()
