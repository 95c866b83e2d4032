"""Record a round or a run, change one person, play it again with the same noise.

The population size is public and part of the plan (privacy/event.py), so the person who is not
there under add-or-remove-one is one of the N with no data, and in a cohort the same cohort without
them; under replace-one somebody else stands in their place. Deterministic: no false alarms.
"""

from __future__ import annotations

import dataclasses
import json
import logging

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfedls import ClientData, FixedSizeSampling, LaplacianSmoothing, PoissonSampling
from dpfedls.audit.neighbours import (
    AbsentPoisson,
    PresentFixed,
    PresentPoisson,
    Recorded,
    Recorder,
    RecordingServer,
)
from dpfedls.audit.replay import audit_replay, differences
from dpfedls.parameters import Layout
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipe as recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.folder import read_rounds
from dpfedls.tasks.task import make_task
from federations import federate, linear_clients, local, plan, start_model

X, Y = linear_clients()[0]
PEOPLE = {
    "ordinary": (X, Y),
    "another": linear_clients(1, seed=9)[0],
    "empty": (X[:0], Y[:0]),
    "huge": (X * 1e6, Y),
    "NaN": (X.sign() * 3e38, Y),  # finite, as data must be, but training on it overflows
    "with much data": (X.repeat(30, 1), Y.repeat(30)),
}


def record(person, sampler, projection="step", block_size=None, round_=0):
    """One real round of real training in which client 0 is ``person``."""
    promised, model = plan(sampler=sampler), start_model()
    recorder, ledger = Recorder(), MemoryLedger(promised)
    server = RecordingServer(promised, recorder, Layout.of(model), ledger)
    data = ClientData.from_pairs([PEOPLE[person], *linear_clients()[1:]])
    simulation = federate(
        model, data, server, local(projection=projection), SeededStreams(0), block_size=block_size
    )
    start = server.start(server.layout.read(model))
    state = simulation.run_round(dataclasses.replace(start, round=round_))
    return Recorded(server.totals[0], recorder.releases[0], state, ledger)


@pytest.mark.parametrize("projection", ["step", "final"])
@pytest.mark.parametrize("block_size", [1, 3, None])
@pytest.mark.parametrize("person", PEOPLE)
def test_one_person_more_moves_the_sum_by_the_clip_norm_and_nothing_else(
    person, block_size, projection
):
    for t in range(3):
        there = record(person, PresentPoisson(rate=0.4), projection, block_size, t)
        gone = record("empty", AbsentPoisson(rate=0.4), projection, block_size, t)
        assert differences(plan(sampler=PoissonSampling(rate=0.4)), there, gone) == []
        if person in ("NaN", "empty"):
            assert torch.equal(there.release.value, gone.release.value)


@pytest.mark.parametrize("projection", ["step", "final"])
@pytest.mark.parametrize("person", PEOPLE)
def test_one_person_replaced_moves_the_sum_by_twice_the_clip_norm_at_most(person, projection):
    for t in range(3):
        one = record(person, PresentFixed(cohort=8), projection, round_=t)
        for other in ("ordinary", "another", "empty"):
            two = record(other, PresentFixed(cohort=8), projection, round_=t)
            assert differences(plan(sampler=FixedSizeSampling(cohort=8)), one, two) == []


@given(
    sampler=st.one_of(
        st.builds(PoissonSampling, rate=st.floats(0.01, 1.0)),
        st.builds(FixedSizeSampling, cohort=st.integers(1, 20)),
    ),
    clip_norm=st.floats(1e-6, 1e6),
    noise=st.floats(1e-3, 100.0),
)
def test_any_plan_and_any_update_replays_alike(sampler, clip_norm, noise):
    promised = plan(sampler=sampler, clip_norm=clip_norm, noise_multiplier=noise)
    assert audit_replay(promised, rounds=1) == []


def test_the_replay_would_notice():
    """The check itself: a plan that claims half the clip norm is refuted."""
    there, gone = (record("ordinary", s(rate=0.4)) for s in (PresentPoisson, AbsentPoisson))
    half = plan(sampler=PoissonSampling(rate=0.4), clip_norm=0.25)
    assert any("the sum moves by 0.5" in text for text in differences(half, there, gone))


@pytest.fixture(scope="module", params=["poisson", "fixed"])
def folders(request, tmp_path_factory):
    """Run folders and log messages of whole runs that differ by client 0."""
    rate = {"poisson": 'kind="poisson", rate=0.3', "fixed": 'kind="fixed", cohort=12'}
    recipe = recipes.read(
        "synthetic",
        [
            "plan.num_clients=40",
            "plan.rounds=4",
            "plan.noise_multiplier=1.0",
            f"plan.sampler={{{rate[request.param]}}}",
        ],
    )
    found = {}
    for person in ("ordinary", "empty", "huge", "NaN"):
        folder = tmp_path_factory.mktemp(request.param) / "run"
        messages: list[str] = []
        handler = logging.Handler(logging.DEBUG)
        handler.emit = lambda record, kept=messages: kept.append(record.getMessage())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "make_task", lambda *args, who=person: altered(who, *args))
            logging.getLogger().addHandler(handler)
            try:
                runs.start(recipe, folder)
            finally:
                logging.getLogger().removeHandler(handler)
        found[person] = (folder, messages)
    return found


def altered(person, name, num_clients, streams):
    """The task with another client 0."""
    task = make_task(name, num_clients, streams)
    pairs = [task.data.client(j) for j in range(num_clients)]
    x, y = pairs[0]
    pairs[0] = {
        "ordinary": (x, y),
        "empty": (x[:0], y[:0]),
        "huge": (x * 1e6, y),
        "NaN": (x.sign() * 3e38, y),
    }[person]
    return type(task)(ClientData.from_pairs(pairs), task.model, task.test)


def public(folder):
    """Everything in a run folder but what a release, a clock or the run's random name went into."""
    statement = json.loads((folder / "privacy.json").read_text())
    digests = statement.pop("files")
    del statement["ledger_head"]
    account = read_ledger(folder / "ledger.sqlite")
    del account.opening["run"]
    return {
        "names": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "sizes": {n: (folder / n).stat().st_size for n in ("model.safetensors", "ledger.sqlite")},
        "recipe": (folder / "recipe.toml").read_bytes(),
        "ledger": (account.opening, account.entries),
        "statement": json.dumps(statement),
        "sealed": sorted(digests),
        "rounds": [(log.round, log.epsilon) for log in read_rounds(folder)],
    }


@pytest.mark.parametrize("person", ["empty", "huge", "NaN"])
def test_a_whole_run_leaves_the_same_public_bytes_whoever_was_in_it(folders, person):
    (one, said), (other, said_too) = folders["ordinary"], folders[person]
    assert said == said_too
    left, right = public(one), public(other)
    for key, value in left.items():
        assert value == right[key], key
    assert msgspec.json.encode(left["rounds"]) == msgspec.json.encode(right["rounds"])
    # The models differ: the test did look at two runs.
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_smoothing_and_averaging_see_the_release_only():
    """Two populations with one release have one model, whatever else is true of them."""
    states = []
    for person, sampler in (("NaN", PresentPoisson), ("empty", AbsentPoisson)):
        run = record(person, sampler(rate=0.4))
        states.append(LaplacianSmoothing(strength=2.0)(run.release))
    assert torch.equal(*states)
