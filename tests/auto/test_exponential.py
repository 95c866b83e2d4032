"""A loss with an exponential is known by itself, and has choices of its own."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import dpfedls
from dpfedls.auto.by_model import ALL, rates_for
from dpfedls.auto.choices import plan_for
from dpfedls.auto.exponential import is_exponential
from dpfedls.people.losses import cross_entropy
from dpfedls.runs.fitting import ready
from dpfedls.runs.train import recipe_for

F = nn.functional
RNG = torch.Generator().manual_seed(0)


def poisson(o, t):
    return o[:, 0].exp() - t * o[:, 0]


EXPONENTIAL = {
    "counts": poisson,
    "counts, by torch": lambda o, t: F.poisson_nll_loss(o[:, 0], t, reduction="none"),
    "hazards": lambda o, t: o[:, 0].exp() * t - t * o[:, 0],
    "times": lambda o, t: t * (-o[:, 0]).exp() + o[:, 0],
    "labels of -1 and 1": lambda o, t: (-t * o[:, 0]).exp(),
    "mean and log variance": lambda o, t: o[:, 1] + (t - o[:, 0]).square() * (-o[:, 1]).exp(),
    "in another unit": lambda o, t: 1e-3 * poisson(o, t),
}
OTHERS = {
    "cross-entropy": cross_entropy,
    "cross-entropy by hand": lambda o, t: o.exp().sum(1).log() - o[:, 0],
    "squared": lambda o, t: (o[:, 0] - t).square(),
    "fourth power": lambda o, t: (o[:, 0] - t) ** 4,
    "tenth power": lambda o, t: (o[:, 0] - t) ** 10,
    "relative": lambda o, t: ((o[:, 0] - t) / t).square(),
    "absolute": lambda o, t: (o[:, 0] - t).abs(),
    "Huber": lambda o, t: F.huber_loss(o[:, 0], t, reduction="none"),
    "hinge": lambda o, t: (1 - t * o[:, 0]).clamp(min=0),
    "yes or no": lambda o, t: F.binary_cross_entropy_with_logits(o[:, 0], t, reduction="none"),
    "yes or no by hand": lambda o, t: (1 + o[:, 0].exp()).log() - t * o[:, 0],
    "negative binomial": lambda o, t: (t + 2) * F.softplus(o[:, 0]) - t * o[:, 0],
    "flat": lambda o, t: 0 * o[:, 0],
    "takes no such targets": lambda o, t: o[:, t.long() + 7].sum(1),
}


@pytest.mark.parametrize("samples", [1, 64])
@pytest.mark.parametrize("name", EXPONENTIAL | OTHERS)
def test_an_exponential_is_known_by_how_the_slope_grows(name, samples):
    outputs, targets = torch.zeros(samples, 2), torch.full((samples,), 1e6)
    loss = (EXPONENTIAL | OTHERS)[name]
    assert is_exponential(outputs, loss, targets) == (name in EXPONENTIAL)


# Of classifiers, so that rare classes count: with 500 people at ε = 1, and with 5,000.
FLOORS = {500: dpfedls.AdaptiveClipping(floor=0.4), 5000: dpfedls.AdaptiveClipping(floor=0.5)}
OF_UNITS = {"absolute", "Huber"}  # bounded slopes, and more may be wrong
GIVEN = ALL - {"learning_rate"}


def fitted(loss, plan, **more):
    samples = torch.randn(9, 12, generator=torch.Generator().manual_seed(1)), torch.zeros(9)
    torch.manual_seed(0)
    return rates_for(plan, "root", nn.Linear(12, 2), loss, samples=samples, public=True, **more)


@pytest.mark.parametrize("people", [500, 5000])
@pytest.mark.parametrize("name", [name for name in OTHERS if name != "takes no such targets"])
def test_other_losses_have_the_choices_that_they_had(name, people, monkeypatch):
    plan, _ = plan_for(people, 1.0)
    found = fitted(OTHERS[name], plan)
    monkeypatch.setattr("dpfedls.auto.rate.is_exponential", lambda *_: False)
    assert found == fitted(OTHERS[name], plan)
    has_units = name in OF_UNITS or found.local["shorten"] is None
    assert found.clip_norm == (None if has_units else FLOORS[people])
    if name in OF_UNITS:  # they may stall, and longer steps of the server do not diverge
        assert found.local["shorten"] == 16


@pytest.mark.parametrize(
    ("people", "epsilon", "quantile", "rate", "learning"),
    [
        (500, 0.5, 0.8, 0.444, 0.004),  # the norm of a higher quantile would not be found in time
        (500, 1.0, 0.8, 0.764, 0.004),
        (4901, 1.0, 0.95, 6.01, 0.00067),
        (4901, 8.0, 0.95, 8.88, 0.00045),
    ],
)
def test_it_clips_few_and_trains_as_briefly_as_the_server_can_make_up_for(
    people, epsilon, quantile, rate, learning
):
    plan, _ = plan_for(people, epsilon, rounds_help=False)
    squared, counts = fitted(OTHERS["fourth power"], plan), fitted(poisson, plan)
    usual = fitted(poisson, plan, open_=GIVEN)
    assert counts.clip_norm == dpfedls.AdaptiveClipping(quantile=quantile)
    assert counts.server == pytest.approx(rate, rel=0.01)
    assert counts.local["learning_rate"] == learning < usual.local["learning_rate"]
    assert counts.local["shorten"] is None
    for key in ("plan.clip_norm", "local.learning_rate"):
        assert "the loss has an exponential" in counts.why[key]
    assert counts.why["local.shorten"].startswith("none")
    assert "at most 20" in counts.why["server_rate"]
    assert fitted(poisson, replace(plan, noise_multiplier=1e-3)).server == 20.0
    # A learning rate that is given keeps the usual limit, and votes.
    assert (usual.server, usual.local["shorten"]) == (squared.server, 16.0)


def test_with_a_norm_that_is_given_trainings_are_as_long_as_ever():
    """Updates much shorter than the norm would be lost in its noise."""
    plan = replace(plan_for(4901, 1.0)[0], clip_norm=0.3)
    found = fitted(poisson, plan)
    assert found.clip_norm is None
    assert found.server == 1.5
    assert found.local["learning_rate"] == fitted(poisson, plan, open_=GIVEN).local["learning_rate"]


def people(count: int = 300):
    x = torch.randn(count, 6, 12, generator=RNG)
    y = torch.poisson((1 + 0.5 * x[..., 0]).exp(), generator=RNG)
    return list(zip(x, y, strict=True))


def test_the_promise_is_the_same_and_all_of_it_stands_in_the_recipe():
    clients = people()
    given = {"model": nn.Linear(12, 1), "clients": clients, "epsilon": 1.0}
    counts, task, _ = recipe_for(**given, loss=poisson)
    squared, _, _ = recipe_for(**given, loss=OTHERS["squared"])
    assert (squared.plan.clipping.quantile, counts.plan.clipping.quantile) == (0.5, 0.8)
    assert replace(counts.plan, clip_norm=squared.plan.clip_norm) == squared.plan
    assert counts.plan.epsilon() == squared.plan.epsilon() <= 1.0
    assert counts.plan.noise_stddev(0.7) == squared.plan.noise_stddev(0.7)
    assert counts.plan.sensitivity(0.7) == squared.plan.sensitivity(0.7)
    assert set(counts.chosen) == set(squared.chosen)
    assert "80% of the updates" in counts.chosen["plan.clip_norm"]
    assert ready(counts, task) is counts  # a resumed run finds nothing left to choose


def test_what_is_given_stays():
    given = {"model": nn.Linear(12, 1), "clients": people(), "loss": poisson}
    local = dpfedls.LocalSGD(steps=25, learning_rate=0.3)
    recipe, _, _ = recipe_for(**given, epsilon=1.0, local=local, server_rate=1.0)
    assert (recipe.local, recipe.server_rate) == (local, 1.0)
    plan, _ = plan_for(300, 1.0)
    recipe, _, _ = recipe_for(**given, plan=plan, server_rate="auto")
    assert recipe.plan == plan
    assert "plan.clip_norm" not in recipe.chosen


def test_a_run_that_was_stopped_goes_on_with_what_was_chosen(tmp_path):
    given = {"model": nn.Linear(12, 1), "clients": people(), "loss": poisson, "epsilon": 1.0}
    given |= {"evaluate_every": 10**6, "folder": tmp_path / "run"}

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**given, watch=[stop])
    result = dpfedls.train(**given)
    assert result.plan.clipping.quantile == 0.8
    assert result.recipe.local.shorten is None
    assert "has an exponential" in result.recipe.chosen["plan.clip_norm"]
    assert result.epsilon == result.plan.epsilon() <= 1.0
    assert len(result.history) == result.plan.rounds
