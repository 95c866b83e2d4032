"""Clip norms: what one client contributes is bounded, and an adaptive norm finds its quantile."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dpfedls
from dpfedls import AdaptiveClipping, InputError, LocalSGD, PoissonSampling, PrivacyPlan
from dpfedls.clipping import Bound, clipped_sum
from dpfedls.denoising import Identity
from dpfedls.parameters import Layout
from dpfedls.privacy.clipping import FixedClipping, Observed
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.privacy.statement import statement
from dpfedls.privacy.wording import text
from dpfedls.runs.verify import verify
from dpfedls.server import Server
from federations import linear_clients, local, start_model


def adaptive(**changes) -> PrivacyPlan:
    values = {
        "sampler": PoissonSampling(rate=0.5),
        "num_clients": 20,
        "rounds": 10,
        "clip_norm": AdaptiveClipping(start=0.5),
        "noise_multiplier": 1.0,
    }
    return PrivacyPlan(**(values | changes))


@given(
    norm=st.floats(1e-6, 1e6),
    quantile=st.floats(0.01, 0.99),
    scale=st.sampled_from([0.0, 1e-3, 0.5, 0.9995, 1.0, 1.5, 1e9, math.inf, math.nan]),
)
def test_update_and_indicator_together_stay_within_the_contribution(norm, quantile, scale):
    """Whatever a client sends, the vector that is summed is no longer than the plan says."""
    clipping = AdaptiveClipping(quantile=quantile)
    update = torch.full((1, 7), scale * norm / math.sqrt(7))
    total = clipped_sum(update, Bound(norm, clipping.indicator(norm), quantile))
    assert float(torch.linalg.vector_norm(total)) <= clipping.contribution(norm) * (1 + 1e-12)


def test_one_client_replaced_moves_the_sum_by_twice_the_contribution_at_most():
    clipping = AdaptiveClipping()
    bound = Bound(0.5, clipping.indicator(0.5))
    far = clipped_sum(torch.tensor([[9.0, 0.0]]), bound) - clipped_sum(
        torch.tensor([[-0.4, 0.0]]), bound
    )
    assert float(far.norm()) <= 2 * clipping.contribution(0.5)


def test_noise_follows_the_norm_that_clipped_and_the_pair_costs_what_the_plan_says():
    """One Gaussian on the update and the indicator: noise ÷ contribution is the multiplier."""
    promised = adaptive(noise_multiplier=1.7)
    for norm in (0.01, 0.5, 30.0):
        assert promised.noise_stddev(norm) == pytest.approx(1.7 * 1.01 * norm)
        assert promised.sensitivity(norm) == pytest.approx(1.01 * norm)
    fixed = adaptive(noise_multiplier=1.7, clip_norm=0.5)
    assert promised.epsilon() == fixed.epsilon()
    assert isinstance(fixed.clipping, FixedClipping)
    layout = Layout(("w",), ((3,),))
    noises = []

    def noise(dim, device):
        noises.append(dim)
        return torch.ones(dim, dtype=torch.float64)

    server = Server(promised, Identity(), layout, MemoryLedger(promised))
    state = server.start(torch.zeros(3))
    after = server.finish_round(state, torch.zeros(4, dtype=torch.float64), noise, "a")
    assert noises == [4]  # the indicator is noised too
    released = float(after.params[0]) * promised.expected_cohort
    assert released == pytest.approx(promised.noise_stddev(state.clip_norm))
    assert after.clip_norm != state.clip_norm


def following(clipping, norm, inside, noise, t, rounds=100, exceeded=0.0):
    """The norm of the next round."""
    return clipping.following(Observed(norm, inside, noise, t, rounds), exceeded)[0]


def test_the_norm_moves_towards_the_quantile():
    clipping = AdaptiveClipping(quantile=0.5)
    assert following(clipping, 1.0, 0.0, 0.1, 20) > 1.0  # nobody was inside: too small
    assert following(clipping, 1.0, 1.0, 0.1, 20) < 1.0  # everybody was: too large
    assert following(clipping, 1.0, 0.5, 0.1, 20) == 1.0
    only_noise = following(clipping, 1.0, 40.0, 0.1, 20)
    assert only_noise == following(clipping, 1.0, 1.0, 0.1, 20)


def test_a_share_in_doubt_moves_the_norm_less():
    """Else the first rounds of a small cohort, whose steps are long, would lead anywhere."""
    rng, far = np.random.default_rng(3), []
    for _ in range(300):
        clipping, norm = AdaptiveClipping(), 1.0
        for t in range(12):  # the median is 1, and noise is nearly all there is to see
            weight = clipping.indicator(norm)
            noise = 4 * clipping.contribution(norm) / 20
            share = 0.5 * (norm > 0.999) + noise / weight * rng.standard_normal()
            norm = following(clipping, norm, share, noise, t)
        far.append(abs(np.log(norm)))
    assert np.mean(far) < 0.8  # a factor of 2.2; were the doubt ignored, of 3.9


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_whoever_sends_nothing_has_no_length(quantile):
    """Seven people of ten send nothing: the norm still finds the quantile of the other three."""
    clipping, norm, rng = AdaptiveClipping(quantile=quantile), 1.0, torch.Generator().manual_seed(0)
    for t in range(250):
        updates = torch.zeros(1000, 1)
        updates[::10, 0], updates[1::10, 0], updates[2::10, 0] = 2.0, 4.0, 8.0
        updates *= 1 + 0.01 * torch.rand(1000, 1, generator=rng)
        total = clipped_sum(updates, Bound(norm, clipping.indicator(norm), quantile))
        inside = quantile + float(total[1]) / (clipping.indicator(norm) * 1000)
        norm = following(clipping, norm, inside, 0.0, t)
    assert norm == pytest.approx({0.2: 2.0, 0.5: 4.0, 0.8: 8.0}[quantile], rel=0.1)
    nobody = clipped_sum(torch.zeros(5, 3), Bound(1.0, clipping.indicator(1.0), quantile))
    assert not nobody.any()


@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_a_start_far_off_is_mended_within_ten_rounds(start, quantile):
    """Lengths around 1 seen through the noise of a cohort of 50 at multiplier 1.

    Seeded; with 500 other seeds none of the 4,500 cases failed.
    """
    rng = np.random.default_rng(7)
    clipping, norm, met = AdaptiveClipping(start=start, quantile=quantile), start, []
    for t in range(30):
        lengths = rng.lognormal(0.0, 0.4, 50)
        weight = clipping.indicator(norm)
        noisy = weight * ((lengths < norm) - quantile).sum() + 1.01 * norm * rng.standard_normal()
        share = quantile + noisy / (weight * 50)
        norm = following(clipping, norm, share, 1.01 * norm / 50, t)
        met.append(norm)
    target = float(np.exp(0.4 * {0.3: -0.5244, 0.5: 0.0, 0.8: 0.8416}[quantile]))
    assert target / 2.5 < met[9] < 2.5 * target
    assert target / 1.6 < np.exp(np.log(met[15:]).mean()) < 1.6 * target


@pytest.mark.parametrize("length", [1e-5, 1e5])
def test_large_steps_go_on_until_the_norm_arrives(length):
    """Targets in cents, or inputs in bytes: 100,000 times away, at multiplier 2 and a cohort of 50.

    Seeded; with 200 other seeds the mean was at most 0.10.
    """
    rng, off = np.random.default_rng(1), []
    for _ in range(20):
        clipping, norm = AdaptiveClipping(), 1.0
        for t in range(20):
            lengths = length * rng.lognormal(0.0, 0.4, 50)
            noise = 2 * clipping.contribution(norm) / 50
            share = (lengths < norm).mean()
            share += noise / clipping.indicator(norm) * rng.standard_normal()
            norm = following(clipping, norm, share, noise, t)
        off.append(abs(np.log(norm / length)))
    assert np.mean(off) < 0.7  # with steps that grew short by the clock alone: 4


def test_training_with_an_adaptive_norm_learns_from_any_start_and_says_the_norm():
    results = [
        dpfedls.train(
            model=start_model(),
            clients=linear_clients(),
            plan=adaptive(
                clip_norm=AdaptiveClipping(start=start), rounds=25, noise_multiplier=0.05
            ),
            local=local(),
            test=linear_clients(1, 200)[0],
        )
        for start in (0.02, 2.0, 200.0)
    ]
    assert all(result.accuracy > 0.8 for result in results)
    assert [result.history[0].clip_norm for result in results] == [0.02, 2.0, 200.0]
    ends = [result.clip_norm for result in results]
    assert max(ends) < 4 * min(ends)


def trained(norm, **settings):
    return dpfedls.train(
        model=start_model(),
        clients=linear_clients(),
        plan=adaptive(clip_norm=norm, rounds=25, noise_multiplier=0.05),
        local=LocalSGD(**settings),
    )


@pytest.mark.parametrize(
    ("settings", "mend"),
    [
        ({"steps": 2, "retry_step": 0.3}, "use steps = 4 or more, or leave retry_step out"),
        ({"epochs": 3, "retry_step": 0.3}, "use epochs = 4 or more"),
        ({"steps": 2, "retry_step": 0.5}, "use steps = 3 or more"),
        ({"epochs": 9, "most_steps": 2, "retry_step": 0.3}, "use most_steps = 4 or more"),
    ],
)
def test_steps_that_all_end_inside_the_ball_are_refused_where_the_norm_follows(settings, mend):
    """On digits the norm was 1e-12 after 20 rounds of 2 or 3 steps of 0.3; with 4 it converged."""
    with pytest.raises(InputError, match=f"falls to nothing; {mend}"):
        trained(AdaptiveClipping(), **settings)
    assert trained(0.3, **settings).clip_norm == 0.3


def test_steps_just_long_enough_to_leave_the_ball_let_the_norm_converge():
    ends = [
        trained(AdaptiveClipping(start=start), steps=4, retry_step=0.3).clip_norm
        for start in (0.01, 1.0)
    ]
    assert max(ends) < 4 * min(ends)


def test_the_statement_says_what_the_norm_follows():
    page = text(statement(adaptive(), mode="simulation"))
    assert "follows the 0.5 quantile of their lengths" in page
    assert "each update clipped to 0.3" in text(
        statement(adaptive(clip_norm=0.3), mode="simulation")
    )


def test_bad_values_are_refused():
    with pytest.raises(InputError, match="quantile must be between 0 and 1"):
        AdaptiveClipping(quantile=1.0)
    with pytest.raises(InputError, match="the norm of the first round"):
        AdaptiveClipping(start=0.0)
    with pytest.raises(InputError, match="bounds what one client"):
        adaptive(clip_norm=-1.0)


# ---- a floor, so that rare people count

FLOORED = AdaptiveClipping(start=1.0, floor=0.4)


def test_what_updates_exceeded_is_remembered_only_where_noise_leaves_no_doubt():
    doubt = 0.1 * FLOORED.indicator(2.0)  # a standard deviation of 0.1 in the share

    def exceeded(before, inside, clipping=FLOORED):
        return clipping.following(Observed(2.0, inside, doubt, 3, 100), before)[1]

    assert exceeded(0.5, 0.25) == 2.0
    assert exceeded(0.5, 0.35) == 0.5  # within two of the quantile
    assert exceeded(3.0, 0.0) == 3.0  # the largest
    assert exceeded(0.5, None) == 0.5  # a vote says nothing of lengths
    assert exceeded(0.0, 0.0, AdaptiveClipping()) == 0.0
    assert exceeded(0.0, 0.0, FixedClipping(2.0)) == 0.0


def test_the_floor_falls_over_the_run_and_never_lengthens_the_norm():
    for norm, t, least in ((2.1, 0, 2.0), (1.3, 4, 2 * 0.4**0.5), (0.82, 8, 0.8)):
        found = following(FLOORED, norm, 1.0, 0.0, t, rounds=8, exceeded=2.0)
        assert found == pytest.approx(least)
    free = following(FLOORED, 1.0, 1.0, 0.0, 3)
    assert free < 0.9
    start = 3  # of so many rounds that nothing of the floor is lost yet
    assert following(FLOORED, 1.0, 1.0, 0.0, start, 10**9, 0.9) == pytest.approx(0.9)
    assert following(FLOORED, 1.0, 1.0, 0.0, start, 10**9, 5.0) == 1.0
    assert following(FLOORED, 1.0, 1.0, 0.0, start, 10**9, 0.01) == free
    assert following(AdaptiveClipping(), 1.0, 1.0, 0.0, start, 10**9, 0.9) == free
    assert following(FixedClipping(1.0), 1.0, 1.0, 0.0, start, 10**9, 5.0) == 1.0


@pytest.mark.parametrize(
    ("quantile", "inside", "doubt", "done", "skipped"),
    [
        (0.5, 0.8, 0.1, 0.01, True),  # three quarters and two deviations are both exceeded
        (0.5, 0.7, 0.01, 0.01, False),  # no doubt that too many are inside, but not far too many
        (0.5, 0.8, 0.2, 0.01, False),  # it may be noise
        (0.5, 0.8, 0.1, 0.05, True),
        (0.5, 0.8, 0.1, 0.06, False),  # the search is over
        (0.9, 0.96, 0.01, 0.01, True),
        (0.9, 0.94, 0.01, 0.01, False),
    ],
)
def test_a_round_is_skipped_only_early_and_where_its_norm_is_clearly_too_long(
    quantile, inside, doubt, done, skipped
):
    clipping = AdaptiveClipping(quantile=quantile)
    noise = doubt * clipping.indicator(2.0)
    seen = Observed(2.0, inside, noise, round(1000 * done) - 1, 1000)
    assert clipping.waits(seen) == skipped
    assert not clipping.waits(seen._replace(inside=None))
    assert not FixedClipping(2.0).waits(seen)


@pytest.mark.parametrize(
    ("doubt", "done", "waits"),
    [(0.05, 0.025, True), (0.06, 0.025, False), (0.05, 0.03, False)],
)
def test_with_little_noise_the_model_waits_until_its_floor_hangs_on_first_updates(
    doubt, done, waits
):
    for clipping in (FLOORED, AdaptiveClipping()):
        noise = doubt * clipping.indicator(2.0)
        expected = waits and clipping is FLOORED
        seen = Observed(2.0, 0.0, noise, round(1000 * done) - 1, 1000)
        assert clipping.waits(seen) == expected  # whoever is inside


def test_the_model_waits_while_its_norm_is_far_too_long(tmp_path):
    """Of 100 rounds five may be skipped, and the log says of which nothing was learned."""
    people = linear_clients(40, seed=0)
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=0.5),
        num_clients=40,
        rounds=100,
        clip_norm=AdaptiveClipping(start=1e6),
        noise_multiplier=0.1,
    )
    models, rates = [], []

    def seen(line):
        rates.append(line.server_rate)

    class Seen:
        def start(self, run):
            self.run = run

        def __call__(self, line):
            models.append(self.run.state.params.clone())

    given = {"plan": plan, "local": LocalSGD(epochs=1, learning_rate=0.01)}
    dpfedls.train(start_model(), people, **given, watch=[Seen(), seen], folder=tmp_path / "run")
    waited = [torch.equal(a, b) for a, b in itertools.pairwise(models)]
    assert all(waited[:3])
    assert not any(waited[5:])
    assert [rate == 0 for rate in rates[1:]] == waited
    assert verify(tmp_path / "run")["valid"]


@pytest.mark.parametrize("rounds", [1, 5, 19])
def test_short_plans_skip_nothing(rounds):
    """A twentieth of so few rounds is none; each is paid for, and of one round no model is left."""
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=0.5),
        num_clients=40,
        rounds=rounds,
        clip_norm=AdaptiveClipping(start=1e6),
        noise_multiplier=0.1,
    )
    given = {"plan": plan, "local": LocalSGD(epochs=1, learning_rate=0.01)}
    result = dpfedls.train(start_model(), linear_clients(40, seed=0), **given)
    assert all(line.server_rate > 0 for line in result.history)


def test_a_plan_without_a_floor_is_written_as_it_was():
    assert "floor" not in msgspec.to_builtins(AdaptiveClipping())
    assert msgspec.convert(msgspec.to_builtins(FLOORED), AdaptiveClipping) == FLOORED
    with pytest.raises(InputError, match=r"clip_norm\.floor"):
        AdaptiveClipping(floor=1.5)


def rare(people, share=0.06):
    """Whoever belongs to the rare class holds nothing else."""
    rng = np.random.default_rng(0)
    labels = (rng.random(people) < share).astype(np.int64)
    x = rng.normal(size=(people, 5, 10)) + 2.2 * labels[:, None, None] / np.sqrt(10)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(labels)[:, None].expand(-1, 5)
    return list(zip(x, y, strict=True))


def test_the_floor_survives_a_crash(tmp_path):
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=0.5),
        num_clients=200,
        rounds=12,
        clip_norm=AdaptiveClipping(start=0.05, floor=0.9),
        noise_multiplier=0.5,
    )

    def stops(line):
        if line.round == 5:
            raise KeyboardInterrupt

    def trained(folder, *watch):
        torch.manual_seed(0)
        local = LocalSGD(epochs=1, learning_rate=0.1)
        known = {"plan": plan, "local": local, "folder": folder, "watch": watch}
        return dpfedls.train(nn.Linear(10, 2), rare(200), **known)

    whole = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "crashed", stops)
    again = trained(tmp_path / "crashed")
    norms = [line.clip_norm for line in whole.history]
    assert [line.clip_norm for line in again.history] == norms
    assert min(norms[3:]) > 0.05 * 0.9**1.01  # most exceeded the start, and noise is small
    assert verify(tmp_path / "crashed")["valid"]
