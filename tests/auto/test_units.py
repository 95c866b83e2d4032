"""A loss with the units of its targets: how far a network goes follows its own weights."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import dpfedls
from dpfedls.auto.by_model import rates_for
from dpfedls.auto.choices import plan_for
from dpfedls.denoising import Identity
from dpfedls.parameters import Layout
from dpfedls.people.losses import cross_entropy
from dpfedls.privacy.clipping import AdaptiveClipping, Observed
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.runs.train import recipe_for
from dpfedls.sampling import PoissonSampling
from dpfedls.server import Server


def squared(outputs, targets):
    return (outputs[:, 0] - targets).square()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


def fitted(model, loss, plan=None):
    samples = (torch.randn(64, 10, generator=torch.Generator().manual_seed(0)), torch.zeros(64))
    plan = plan or plan_for(353, 1.0)[0]
    return rates_for(plan, "root", model, loss, samples=samples, public=True)


def test_a_network_has_a_limit_and_a_linear_model_has_none():
    """Prices ask a linear model for updates of thousands, and nothing there grows by itself."""
    found, linear = fitted(network(), squared), fitted(nn.Linear(10, 1), squared)
    assert (found.clip_norm, found.local["shorten"]) == (AdaptiveClipping(of_weights=0.5), None)
    assert "0.5 of the weights' own" in found.why["plan.clip_norm"]
    assert (linear.clip_norm, linear.local["shorten"]) == (None, None)
    assert found.server == pytest.approx(2 * linear.server)  # noise of 0.6 clip norms and 0.3


def test_scores_and_a_given_norm_are_as_they_were():
    scores = fitted(nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)), cross_entropy)
    assert (scores.clip_norm, scores.local["shorten"]) == (AdaptiveClipping(floor=0.4), 16.0)
    given = PrivacyPlan(
        sampler=PoissonSampling(rate=0.1),
        num_clients=353,
        rounds=100,
        clip_norm=1.0,
        noise_multiplier=2.0,
    )
    one, other = (fitted(model, squared, given) for model in (network(), nn.Linear(10, 1)))
    assert one.clip_norm is None
    assert one.server == other.server


def test_convolutions_let_their_norm_fall_further():
    """Their updates are long at first; 0.4 cost a CNN on MNIST half a point."""
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    samples = torch.randn(9, 1, 10), torch.zeros(9, dtype=torch.int64)
    for plan in (plan_for(353, 1.0)[0], plan_for(20_000, 4.0)[0]):
        found = rates_for(plan, "root", net, cross_entropy, samples=samples, public=True)
        assert found.clip_norm == replace(plan.clipping, floor=0.1)


def test_the_limit_follows_the_model_and_is_never_below_the_start():
    clipping = AdaptiveClipping(start=1.0, of_weights=0.5)
    nobody_inside = Observed(4.0, 0.0, 0.0, 1, 100)
    assert clipping.following(nobody_inside, weights=12.0)[0] == 6.0
    assert clipping.following(nobody_inside, weights=1e6)[0] > 20
    assert clipping.following(nobody_inside, weights=0.1)[0] == 1.0
    assert AdaptiveClipping().following(nobody_inside, weights=12.0)[0] > 20
    for wrong in (0.0, "half", None):
        with pytest.raises(dpfedls.InputError, match=r"clip_norm\.of_weights"):
            AdaptiveClipping(of_weights=wrong)


def test_a_norm_without_a_limit_is_written_as_before_there_was_one():
    """Statements and ledgers hold it: a folder of an earlier version verifies, and goes on."""
    plain = {"kind": "adaptive", "start": 1.0, "quantile": 0.5}
    assert msgspec.to_builtins(AdaptiveClipping()) == plain
    limited = AdaptiveClipping(of_weights=0.5)
    assert msgspec.to_builtins(limited) == plain | {"of_weights": 0.5}
    assert msgspec.convert(plain | {"of_weights": 0.5}, AdaptiveClipping) == limited


def test_the_server_measures_the_model_that_it_released():
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=0.5),
        num_clients=10,
        rounds=5,
        clip_norm=AdaptiveClipping(start=1.0, of_weights=0.5),
        noise_multiplier=0.01,
    )
    server = Server(plan, Identity(), Layout(("w",), ((4,),)), MemoryLedger(plan))
    # Five people move each of four weights by 5, and none of them is inside the ball.
    total = torch.tensor([25.0] * 4 + [-1.0], dtype=torch.float64)

    def no_noise(dim, device):
        return torch.zeros(dim, dtype=torch.float64)

    after = server.finish_round(server.start(torch.zeros(4)), total, no_noise, "a")
    assert after.params.tolist() == [5.0] * 4
    assert after.clip_norm == 5.0  # half of their length, 10; the count alone would ask for 8


def test_targets_in_units_do_not_make_a_network_diverge():
    """One row a person, targets around 150: in six rounds the norm was 785, and the loss 1e9."""
    from sklearn.datasets import load_diabetes

    table = load_diabetes(scaled=False)
    features = torch.tensor((table.data - table.data.mean(0)) / table.data.std(0)).float()
    targets = torch.tensor(table.target).float()
    order = np.random.default_rng(1).permutation(len(targets))
    people = [(features[own], targets[own]) for own in np.array_split(order[88:], 353)]
    test = order[:88]
    result = dpfedls.train(network(), people, epsilon=1.0, loss=squared, seed=1)
    with torch.no_grad():
        found = float(squared(result.model(features[test]), targets[test]).mean())
    assert found < 0.9 * float(targets[test].var())  # below what a constant has


def test_no_epsilon_depends_on_it():
    people = [(torch.randn(5, 10), torch.randn(5)) for _ in range(300)]
    known = {"clients": people, "epsilon": 1.0, "loss": squared}
    (limited, *_), (free, *_) = (
        recipe_for(model=network(), **known),
        recipe_for(model=nn.Linear(10, 1), **known),
    )
    assert limited.plan.clipping != free.plan.clipping
    assert limited.plan.epsilon() == free.plan.epsilon() <= 1.0
    assert limited.plan.noise_stddev(0.7) == free.plan.noise_stddev(0.7)
