from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedls import InputError
from dpfedls.tasks.partition import dirichlet, iid, natural


def numbered(samples, classes):
    """Samples that carry their own number, and labels in turn."""
    return torch.arange(samples), torch.arange(samples) % classes


@pytest.mark.parametrize("concentration", [1e-3, 0.5, 100.0])
def test_dirichlet_gives_every_sample_one_owner_and_everybody_an_equal_share(concentration):
    features, targets = numbered(1003, 10)
    data = dirichlet(features, targets, 60, concentration, np.random.default_rng(0))
    assert sorted(data.features.tolist()) == list(range(1003))
    assert torch.equal(data.targets, data.features % 10)
    assert data.num_clients == 60
    assert set(data.sizes) == {16, 17}


def test_the_smaller_the_concentration_the_fewer_classes_a_client_has():
    features, targets = numbered(5000, 10)

    def largest_share(concentration):
        data = dirichlet(features, targets, 50, concentration, np.random.default_rng(0))
        clients = (data.client(j)[1] for j in range(50))
        return np.mean([np.bincount(y).max() / len(y) for y in clients])

    even = iid(features, targets, 50, np.random.default_rng(0))
    shares = [largest_share(c) for c in (0.05, 0.5, 5.0, 1e6)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.7
    assert shares[1] > 0.3
    dealt = np.mean([np.bincount(even.client(j)[1]).max() / 100 for j in range(50)])
    assert abs(shares[-1] - dealt) < 0.02  # endless concentration is dealing at random


def test_dirichlet_follows_its_generator_and_refuses_what_makes_no_sense():
    features, targets = numbered(100, 4)
    one, again, other = (
        dirichlet(features, targets, 10, 0.5, np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(one.features, again.features)
    assert not torch.equal(one.features, other.features)
    with pytest.raises(InputError, match="use at most 100 clients"):
        dirichlet(features, targets, 101, 0.5, np.random.default_rng(0))
    with pytest.raises(InputError, match="concentration must be a finite number > 0"):
        dirichlet(features, targets, 10, 0.0, np.random.default_rng(0))


def test_natural_gives_everybody_what_is_theirs_in_order():
    features = torch.arange(7)
    owners = np.array(["bo", "al", "bo", "cy", "al", "bo", "bo"])
    data = natural(features, features * 10, owners)
    assert data.sizes.tolist() == [2, 4, 1]
    assert [data.client(j)[0].tolist() for j in range(3)] == [[1, 4], [0, 2, 5, 6], [3]]
    assert torch.equal(data.targets, data.features * 10)
    with pytest.raises(InputError, match="6 owners for 7 samples"):
        natural(features, features, owners[:6])


def test_more_clients_than_samples_is_refused():
    with pytest.raises(InputError, match="use at most 3 clients"):
        iid(torch.zeros(3, 1), torch.zeros(3), 4, np.random.default_rng(0))
