"""Rounds in which people vote: what the audit expects of them, and bugs that it has to name.

Deterministic, since streams are seeded: no false alarms.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from planting import people, wrap

from dpfedls import FixedSizeSampling, Identity, PoissonSampling, PrivacyPlan
from dpfedls import server as server_module
from dpfedls.auditing import noise as noise_module
from dpfedls.auditing.boundary import boundary
from dpfedls.auditing.public import following_problems, leaving_problems, replayed
from dpfedls.auditing.recipe import audit, not_seen
from dpfedls.auditing.votes import own_loss_problems, vote_problems
from dpfedls.auditing.worlds import run_made_up, run_world
from dpfedls.engine import Engine
from dpfedls.engine import choice as choice_module
from dpfedls.engine import engine as engine_module
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.runs.recipe import Recipe
from dpfedls.server import Server
from federations import local

POISSON, FIXED = PoissonSampling(rate=0.3), FixedSizeSampling(cohort=60)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(noise_module, "DRAWS", 2**16)


def recipe(sampler=POISSON, rounds=60, noise=0.3, num_clients=200, **changes):
    """Of 60 rounds, whose votes begin in the third six: noise and draw hide little."""
    promised = PrivacyPlan(
        sampler=sampler,
        num_clients=num_clients,
        rounds=rounds,
        clip_norm=AdaptiveClipping(),
        noise_multiplier=noise,
        delta=1e-2,
    )
    values = {
        "task": "given in Python",
        "plan": promised,
        "local": local(shorten=16.0),
        "engine": "vmapped",
        "block_size": 20,
        "denoiser": Identity(),
        "seed": 3,
    }
    return Recipe(**values | changes)


def found_in_made_up_rounds():
    made = run_made_up(recipe(), 20)
    problems = boundary(made.recipe.plan, made.record).problems
    return made, problems + following_problems(made, replayed(made))


@pytest.mark.parametrize("sampler", [POISSON, FIXED])
def test_correct_votes_raise_no_alarm(sampler):
    """False alarms: about 3e-4 each, in the deployed part only, since the rest is seeded."""
    found = audit(recipe(sampler), people(200), rounds=4, trials=60)
    assert found["problems"] == found["notes"] == []
    assert "votes" in found["checks"]


def test_made_up_rounds_have_votes_and_a_stall():
    made, problems = found_in_made_up_rounds()
    assert problems == []
    asked = [seen.number for seen in made.record if seen.bounds[0].earlier is not None]
    assert asked == [13, 15, 17]  # the odd rounds of the third tenth
    paces = [seen.bounds[0].pace for seen in made.record]
    assert paces == [1.0] * 18 + [1 / 16] * 2


def votes_of_weight_two(patch):
    def clipped_sum(real, updates, bound, better=None):
        total = real(updates, bound, better)
        return total if better is None else torch.cat([total[:-1], 2 * total[-1:]])

    wrap(patch, engine_module, "clipped_sum", clipped_sum)


def votes_without_bound(patch):
    """By how much the loss fell, where a yes or no was promised."""

    def better(real, self, params, block, bound):
        if bound.earlier is None:
            return None
        return self.losses(bound.earlier, block) - self.losses(params, block)

    wrap(patch, Engine, "_better", better)


def those_without_an_update_vote(patch):
    def clipped_sum(real, updates, bound, better=None):
        total = real(updates, bound, better)
        if better is not None:
            votes = better[~updates.any(dim=1)].double() - bound.quantile
            total[-1] += bound.indicator * votes.sum()
        return total

    wrap(patch, engine_module, "clipped_sum", clipped_sum)


def votes_without_noise(patch):
    def release(real, total, plan, norm, t, *given):
        made = real(total, plan, norm, t, *given)
        weight = plan.clipping.indicator(norm) * plan.expected_cohort
        return replace(made, inside=plan.clipping.quantile + float(total[-1]) / weight)

    wrap(patch, server_module, "gaussian_release", release)


def votes_of_the_realised_cohort(patch):
    drawn = {}

    def total(real, self, params, cohort, *given):
        drawn["people"] = max(1, len(cohort))
        return real(self, params, cohort, *given)

    def release(real, total, plan, *given):
        made = real(total, plan, *given)
        share = made.inside - plan.clipping.quantile
        share *= plan.expected_cohort / drawn["people"]
        return replace(made, inside=plan.clipping.quantile + share)

    wrap(patch, Engine, "clipped_total", total)
    wrap(patch, server_module, "gaussian_release", release)


def pace_from_the_true_share(patch):
    shares = []

    def finish(real, self, state, total, noise, nonce):
        if self.bound(state).earlier is not None:
            shares.append(float(total[-1]))
        return real(self, state, total, noise, nonce)

    def bound(real, self, state):
        made = real(self, state)
        return replace(made, pace=1 / 16) if shares and shares[-1] < 0 else made

    wrap(patch, Server, "finish_round", finish)
    wrap(patch, Server, "bound", bound)


def true_shares_remembered(patch):
    sums = []

    def release(real, total, plan, norm, *given):
        weight = plan.clipping.indicator(norm) * plan.expected_cohort
        sums.append(plan.clipping.quantile + float(total[-1]) / weight)
        return real(total, plan, norm, *given)

    def following(real, votes, plan, t, share, params):
        return real(votes, plan, t, sums[-1], params)

    wrap(patch, server_module, "gaussian_release", release)
    wrap(patch, server_module, "votes_after", following)


def pace_of_one_block(patch):
    """Not what the round promised: each block of people trains as its own votes say."""

    def updates(real, self, params, block, round_, key, bound):
        own = self._better(params, block, bound)
        slow = own is not None and own.sum() < 2
        bound = replace(bound, pace=1 / 16) if slow else bound
        return real(self, params, block, round_, key, bound)

    wrap(patch, Engine, "_updates", updates)


def norm_moved_by_votes(patch):
    shares = []

    def release(real, *given):
        made = real(*given)
        shares.append(made.inside)
        return made

    def following(real, self, seen, *given):
        inside = shares[-1] if seen.inside is None else seen.inside
        return real(self, seen._replace(inside=inside), *given)

    wrap(patch, server_module, "gaussian_release", release)
    wrap(patch, AdaptiveClipping, "following", following)


def an_earlier_model_that_is_not_public(patch):
    sums = []

    def finish(real, self, state, total, noise, nonce):
        sums.append(total[: self.layout.dim].float())
        return real(self, state, total, noise, nonce)

    def bound(real, self, state):
        made = real(self, state)
        raw = made.earlier is not None and len(sums) > 0
        return replace(made, earlier=made.earlier + sums[-1]) if raw else made

    wrap(patch, Server, "finish_round", finish)
    wrap(patch, Server, "bound", bound)


BUGS = {  # the bug: a word that the audit says
    votes_of_weight_two: "the sum is not",
    votes_without_bound: "the sum is not",
    those_without_an_update_vote: "the sum is not",
    votes_without_noise: "the release is not",
    votes_of_the_realised_cohort: "the release is not",
    pace_from_the_true_share: "the pace of clients",
    true_shares_remembered: "votes.said after a round",
    pace_of_one_block: "the pace of clients",
    norm_moved_by_votes: "the clip norm",
    an_earlier_model_that_is_not_public: "on which two models",
}


@pytest.mark.parametrize("plant", BUGS)
def test_the_audit_names_the_bug(plant, monkeypatch):
    plant(monkeypatch)
    _, problems = found_in_made_up_rounds()
    assert any(BUGS[plant] in text for text in problems), problems


def losses_of_the_whole_block(patch):
    def losses(real, *given):
        made = real(*given)
        return made.nanmean().expand(len(made))

    wrap(patch, choice_module, "mean_losses", losses)


def test_a_vote_by_anothers_samples_is_found(monkeypatch):
    losses_of_the_whole_block(monkeypatch)
    assert vote_problems(recipe(), people(200), Identity(), person=3) == {
        "votes": ["the loss that a person votes by is not that of their own samples"]
    }


def test_votes_in_half_the_bits_are_the_persons_own_too():
    half = recipe(local=local(shorten=16.0, precision="bfloat16"))
    assert vote_problems(half, people(200), Identity(), person=3) == {"votes": []}


def test_a_whole_run_that_stalls_follows_from_its_releases(tmp_path):
    """Labels that cannot be learned, steps that are far too long, hardly any noise: all say no."""
    task, labels = people(400), torch.Generator().manual_seed(0)
    targets = torch.randint(3, task.data.targets.shape, generator=labels)
    task = replace(task, data=replace(task.data, targets=targets))
    many = FixedSizeSampling(cohort=300)
    wild = recipe(many, rounds=10, noise=0.05, num_clients=400, server_rate=40.0)
    world = run_world(wild, task, Identity(), tmp_path / "run")
    assert [seen.bounds[0].pace for seen in world.record] == [1.0] * 4 + [1 / 16] * 6
    assert leaving_problems(world) == []
    assert boundary(wild.plan, world.record).problems == []
    assert own_loss_problems(world, but=-1) == []


def test_votes_that_are_not_seen_are_told():
    assert not_seen(recipe(), trials=60) == []
    assert "no effect" in not_seen(recipe(rounds=20), trials=60)[0]
    assert "--trials 301" in not_seen(recipe(rounds=1000), trials=300)[0]
