"""Votes on whether learning stalls: what they cost, what they find, and what follows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dpfedls
from dpfedls import AdaptiveClipping, ClientData, Identity, InputError, LocalSGD, PoissonSampling
from dpfedls.clipping import Bound, clipped_sum
from dpfedls.engine import choose
from dpfedls.parameters import Layout
from dpfedls.people.losses import cross_entropy
from dpfedls.privacy import stall
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.verify import verify
from dpfedls.server import Server
from dpfedls.stepping import NoiseRate
from federations import linear_clients, local, model_and_data, plan, start_model

ADAPTIVE = AdaptiveClipping(start=0.5)
LAYOUT = Layout(("w",), ((6,),))


def promised(**changes):
    """80 of 200 people a round: two votes of a window can tell a half from 0.6."""
    values = {"clip_norm": ADAPTIVE, "rounds": 40, "noise_multiplier": 0.1, "num_clients": 200}
    return plan(**(values | changes))


def server(**changes):
    own = changes.pop("plan", promised())
    rate = NoiseRate(noise=1e9, at_most=2.0)
    return Server(own, Identity(), LAYOUT, MemoryLedger(own), rate=rate, shorten=16.0, **changes)


def states(made, shares):
    """After each round, if these shares say yes."""
    state, all_of_them = made.start(torch.zeros(6)), []
    for t, share in enumerate(shares):
        total = torch.zeros(7, dtype=torch.float64)
        total[6] = made.bound(state).indicator * (share - 0.5) * made.plan.expected_cohort
        state = made.finish_round(state, total, SeededStreams(0).noise(t), str(t))
        all_of_them.append(state)
    return all_of_them


@given(
    norm=st.floats(1e-6, 1e6),
    quantile=st.floats(0.01, 0.99),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e9, math.inf, math.nan]),
    vote=st.booleans(),
)
def test_update_and_vote_together_stay_within_the_contribution(norm, quantile, scale, vote):
    """Whatever a client sends and says: so a vote changes no ε."""
    clipping = AdaptiveClipping(quantile=quantile)
    update = torch.full((1, 7), scale * norm / math.sqrt(7))
    bound = Bound(norm, clipping.indicator(norm), quantile, earlier=torch.zeros(7))
    total = clipped_sum(update, bound, torch.tensor([vote]))
    assert float(torch.linalg.vector_norm(total)) <= clipping.contribution(norm) * (1 + 1e-12)
    says = total[-1] > 0 if vote else total[-1] < 0
    assert bool(says) or scale == 0  # who sends nothing says nothing


def test_odd_rounds_of_the_first_half_ask_and_compare_with_the_window_before():
    made = server()
    reached = [made.start(torch.zeros(6)), *states(made, [0.9] * 40)]
    asked = [t for t in range(40) if made.bound(reached[t]).earlier is not None]
    assert asked == [9, 11, 13, 15, 17, 19]
    for t in asked:
        window = 4 * (t // 4)
        assert torch.equal(made.bound(reached[t]).earlier, reached[window - 4].params)
    assert not any(state.votes.stalled for state in reached)


def test_a_stall_shortens_trainings_and_the_norm_and_lengthens_steps_from_then_on():
    made = server()
    reached = [made.start(torch.zeros(6)), *states(made, [0.2] * 40)]
    found = [state.votes.stalled for state in reached]
    first = found.index(True)
    assert first == 12  # after the window of rounds 8 to 11, in which 9 and 11 ask
    assert all(found[first:])
    before, after = reached[first - 1], reached[first]
    assert after.clip_norm == pytest.approx(before.clip_norm / 16)  # a vote moves it by nothing
    assert (made.bound(before).pace, made.bound(after).pace) == (1.0, 1 / 16)
    assert (made.step(before), made.step(after)) == (2.0, 32.0)
    assert all(made.bound(state).earlier is None for state in reached[first:])


def test_a_share_that_says_no_does_not_move_the_norm():
    """It is about losses: taken for one about lengths it would let the norm grow."""
    made, shares = server(), [0.5] * 9 + [0.9]
    *_, before, after = states(made, shares)
    assert made.bound(before).earlier is not None
    assert after.clip_norm == before.clip_norm


def test_nobody_is_asked_where_votes_cannot_tell():
    """Each would be noise, and cost the clip norm a round."""
    made = server(plan=promised(noise_multiplier=2.0))
    reached = states(made, [0.0] * 40)
    assert all(made.bound(state).earlier is None for state in reached)
    assert not reached[-1].votes.stalled


def test_noise_alone_is_seldom_taken_for_a_stall():
    """Three quarters say yes, 20 times in each of three windows, in the noisiest plan that asks:
    a mean is 0.15 from 0.6, three standard deviations, and has to be two on the other side. 300
    windows: a false alarm with a chance of 1e-4."""
    own = promised(noise_multiplier=4.8, rounds=400)
    assert 0.095 < stall._doubt(own, 20) < 0.1
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        votes = stall.Votes("older", "newer")
        for t in range(200):
            share = 0.75 + stall._doubt(own, 1) / 2 * rng.standard_normal()
            votes = stall.votes_after(votes, own, t, share, "model")
        wrong += votes.stalled
    assert wrong == 0


@pytest.mark.parametrize("engine", ["looped", "vmapped", "compiled"])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_each_engine_counts_for_whom_the_model_is_better(kind, engine):
    model, data = model_and_data(kind)
    made = choose(model, data, local(), engine=engine, block_size=3)
    layout = Layout.of(model)
    params = layout.read(model)
    earlier = params + 0.3 * torch.randn(len(params), generator=torch.Generator().manual_seed(3))
    cohort, bound = np.arange(7), Bound(0.5, 0.25, earlier=earlier)
    total = made.clipped_total(params, cohort, 0, 1, bound)
    better = 0
    for j in (0, 1, 3, 4, 5, 6):  # person 2 has no samples, and no vote
        features, targets = data.client(j)
        losses = []
        for weights in (params, earlier):
            layout.write(weights, model)
            losses.append(cross_entropy(model(features), targets).mean().item())
        better += losses[0] < losses[1]
    assert 0 < better < 6
    assert float(total[-1]) == pytest.approx(0.25 * (better - 3))


def test_the_pace_is_a_shorter_learning_rate_in_each_engine():
    model, data = model_and_data("mlp")
    params = Layout.of(model).read(model)
    for engine in ("looped", "vmapped", "compiled"):
        slow, usual = (
            choose(model, data, local(learning_rate=rate), engine=engine).clipped_total(
                params, np.arange(7), 0, 1, Bound(9.0, pace=pace)
            )
            for rate, pace in ((0.2, 1 / 16), (0.2 / 16, 1.0))
        )
        torch.testing.assert_close(slow, usual, rtol=1e-5, atol=1e-8)


def test_somebody_who_cannot_vote_says_no_and_others_vote():
    model, data = model_and_data("linear")

    class Broken(ClientData):
        def take(self, rows, padded=False):
            features, targets = super().take(rows, padded)
            if (rows == 0).any():  # of person 0
                raise OSError("a file is gone")
            return features, targets

    broken = Broken(data.features, data.targets, data.starts, data.sizes)
    made = replace(choose(model, broken, local(), engine="looped"), failing="zero")
    params = Layout.of(model).read(model)
    bound = Bound(0.5, 0.25, earlier=params + 0.1)
    found = made.clipped_total(params, np.arange(7), 0, 1, bound)
    others = choose(model, data, local(), engine="looped")
    expected = others.clipped_total(params, np.arange(1, 7), 0, 1, bound)
    torch.testing.assert_close(found, expected)


def stop_after(last):
    def watch(line):
        if line.round == last:
            raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize("last", [10, 11, 20])
def test_a_run_that_stalls_goes_on_to_the_same_model(tmp_path, last):
    """Stopped in a window of votes, before a vote, and long after the stall."""
    asked = {
        "model": start_model(),
        "clients": linear_clients(100),
        "plan": promised(sampler=PoissonSampling(rate=1.0), num_clients=100),
        "local": local(shorten=16.0, learning_rate=100.0),  # so long that it learns nothing
    }
    whole = dpfedls.train(**asked, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        dpfedls.train(**asked, folder=tmp_path / "cut", watch=[stop_after(last)])
    result = dpfedls.train(**asked, folder=tmp_path / "cut")
    rates = [line.server_rate for line in result.history]
    assert set(rates) == {1.0, 16.0}
    assert [line.clip_norm for line in result.history] == [
        other.clip_norm for other in whole.history
    ]
    ours, theirs = (nn.utils.parameters_to_vector(r.model.parameters()) for r in (result, whole))
    assert torch.equal(ours, theirs)
    assert verify(tmp_path / "cut")["valid"], verify(tmp_path / "cut")["problems"]


def test_votes_need_a_norm_that_adapts():
    shortened = LocalSGD(steps=25, shorten=16.0)
    with pytest.raises(InputError, match="needs cohorts that vote"):
        Recipe(task="synthetic", plan=promised(clip_norm=1.0), local=shortened)
    with pytest.raises(InputError, match=r"local\.shorten"):
        LocalSGD(steps=25, shorten=0.0)
