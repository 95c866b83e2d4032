"""Whole runs that differ in one person, with the same noise: what may differ, and what may not.

The population size is public and part of the plan, so the person who is not there under
add-or-remove-one is one of the N who never answers; under replace-one somebody who sends the
opposite stands in their place. Deterministic: no false alarms.
"""

from __future__ import annotations

import pytest
import torch

from dpfedls import FixedSizeSampling, LaplacianSmoothing, PoissonSampling
from dpfedls.auditing.boundary import boundary
from dpfedls.auditing.public import leaving_problems, neighbour_problems, replayed
from dpfedls.auditing.worlds import altered, hostile, negated, run_world
from dpfedls.people.clients import ClientData
from dpfedls.randomness import SeededStreams
from dpfedls.runs.recipe import Recipe
from dpfedls.tasks.task import Task
from federations import linear_clients, local, plan, start_model

HELD = linear_clients(1, size=30, seed=4)[0]
DENOISER = LaplacianSmoothing(strength=2.0)


@pytest.fixture(scope="module", params=[PoissonSampling(rate=0.4), FixedSizeSampling(cohort=8)])
def worlds(request, tmp_path_factory):
    task = Task(ClientData.from_pairs(linear_clients()), start_model(), HELD)
    recipe = Recipe(
        task="given in Python", plan=plan(sampler=request.param), local=local(),
        denoiser=DENOISER, averaging=0.8,
    )  # fmt: skip
    person = int(request.param.sample(20, SeededStreams(0).sampling(0))[0])
    place = tmp_path_factory.mktemp("worlds")
    one = run_world(recipe, altered(task, person), DENOISER, place / "one", hostile(person))
    other = (
        run_world(recipe, task, DENOISER, place / "other", absent=(person,))
        if isinstance(request.param, PoissonSampling)
        else run_world(recipe, task, DENOISER, place / "other", negated(hostile(person), (person,)))
    )
    return one, other


def test_releases_are_sum_noise_and_public_denominator(worlds):
    for world in worlds:
        assert boundary(world.recipe.plan, world.record, world.absent).problems == []


def test_everything_that_leaves_follows_from_the_releases(worlds):
    one, other = worlds
    assert leaving_problems(one) == leaving_problems(other) == []
    assert neighbour_problems(one, other) == []
    # The models differ: the test did look at two runs.
    assert not torch.equal(replayed(one)[-1].params, replayed(other)[-1].params)


def test_smoothing_and_averaging_see_the_release_only(worlds):
    """The average is not the last iterate, and follows from the releases alone."""
    one, _ = worlds
    last = replayed(one)[-1]
    assert not torch.equal(last.params, last.average)
    given = torch.nn.utils.parameters_to_vector(one.result.model.parameters()).detach()
    torch.testing.assert_close(given, last.average, rtol=1e-5, atol=1e-6)


def test_the_comparison_would_notice(worlds):
    """The check itself: a file more, or a release that is not the one recorded."""
    one, _ = worlds
    extra = one.folder / "total.npy"
    extra.write_bytes(b"raw")
    assert leaving_problems(one) == ["total.npy should not be in the run folder"]
    extra.unlink()
