"""Bugs that real systems have had, planted in the real path: each must be caught.

A check returns what it finds wrong: nothing on correct code, something once the bug is planted.
``one_round`` and ``many_rounds``, the statistical ones, raise a false alarm in at most 1 % of
seeds, ``cohorts`` in 0.1 %; the others are deterministic. Seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpfedls import FixedSizeSampling, Identity, InputError, PoissonSampling, PrivacyPlan
from dpfedls import clipping as clipping_module
from dpfedls import server as server_module
from dpfedls.audit.cohorts import audit_cohorts
from dpfedls.audit.gdp import audit_round
from dpfedls.audit.neighbours import LAYOUT
from dpfedls.audit.replay import audit_replay
from dpfedls.engine import Engine
from dpfedls.parameters import Layout
from dpfedls.people import clients as clients_module
from dpfedls.privacy import epsilon
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.ledger import MemoryLedger, SqliteLedger
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipe as recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import FILE
from dpfedls.runs.verify import verify
from dpfedls.tasks.task import Task
from federations import linear_clients, local, plan

POISSON, FIXED = PoissonSampling(rate=0.4), FixedSizeSampling(cohort=8)


# The checks.


def one_round(sampler, tmp_path, trials=150):
    """The lower bound on μ above the claim."""
    found = audit_round(plan(sampler=sampler), SeededStreams(5), trials=trials)
    return [] if found.consistent else [f"mu >= {found.mu_lower}, claimed {found.mu_claimed}"]


def many_rounds(sampler, tmp_path):
    """The same from 400 trials, so that noise × 0.8 escapes one seed in 5,000 at most."""
    return one_round(sampler, tmp_path, trials=400)


def replayed(sampler, tmp_path):
    """A difference in anything but the sum, when one person changes and the noise does not."""
    return audit_replay(plan(sampler=sampler))


def cohorts(sampler, tmp_path):
    """Cohorts that are not drawn as the plan's event says."""
    return audit_cohorts(plan(sampler=sampler), SeededStreams(5)).problems


def ledger(sampler, tmp_path):
    """Releases without payment, when a deployed run goes back to an old checkpoint."""
    folder, releases, kept = tmp_path / "run", [], []
    settings = [
        "mode=deployed",
        "plan.num_clients=40",
        "plan.rounds=4",
        "plan.noise_multiplier=1.0",
    ]
    real = server_module.gaussian_release

    def counting(*args):
        releases.append(args)
        return real(*args)

    def stop_after_three(log):
        kept.append((folder / FILE).read_bytes())
        if log.round == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as watching:
        watching.setattr(server_module, "gaussian_release", counting)
        with pytest.raises(KeyboardInterrupt):
            runs.start(recipes.read("synthetic", settings), folder, [stop_after_three])
        (folder / FILE).write_bytes(kept[1])
        runs.resume(folder)
    entries = read_ledger(folder / "ledger.sqlite").entries
    unpaid = len(releases) - len(entries)
    return verify(folder)["problems"] + [f"{unpaid} releases were never paid for"] * (unpaid > 0)


class Counter(nn.Linear):
    """A model that counts the samples it has seen, as BatchNorm does, in a buffer."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, features):
        self.seen += len(features)
        return super().forward(features)


def buffers(sampler, tmp_path):
    """A model with a buffer is refused at the start, or else the buffer tells who took part."""
    seen = []
    for size in (6, 0):  # client 0 as it is, and with nothing
        clients = linear_clients()
        clients[0] = tuple(part[:size] for part in clients[0])
        data = clients_module.ClientData.from_pairs(clients)
        promised = plan(sampler=PoissonSampling(rate=1.0))
        recipe = recipes.Recipe(task="", plan=promised, local=local(), engine="looped")
        try:
            built, model = runs.prepare(recipe, Task(data, Counter()), Identity())
        except InputError:
            return []
        built.run_round(built.server.start(Layout.of(model).read(model)))
        seen.append(float(model.seen))
    return [] if seen[0] == seen[1] else [f"un-noised buffer {seen[0]} or {seen[1]}"]


# The bugs: each takes pytest's monkeypatch and plants itself.


def scaled_noise(factor):
    def plant(patch):
        real = server_module.gaussian_release

        def release(total, plan, norm, t, noise, layout):
            return real(total, plan, norm, t, lambda *shape: noise(*shape).mul_(factor), layout)

        patch.setattr(server_module, "gaussian_release", release)

    return plant


def no_clipping(patch):
    patch.setattr(clipping_module, "clip", lambda updates, norm: updates)


def clipping_by_layer(patch):
    real = clipping_module.clip

    def clip(updates, norm):
        return torch.cat([real(piece, norm) for piece in updates.split(LAYOUT.sizes, dim=1)], dim=1)

    patch.setattr(clipping_module, "clip", clip)


def divide_by(patch, count):
    """Let the denominator be a function of the round's cohort and its rows that are not finite."""
    seen = {"cohort": 1, "broken": 0}
    summed, clip = Engine.clipped_total, clipping_module.clip

    def watched_sum(self, params, cohort, *args):
        seen.update(cohort=len(cohort), broken=0)
        return summed(self, params, cohort, *args)

    def watched_clip(updates, norm):
        seen["broken"] += int((~torch.isfinite(updates).all(dim=1)).sum())
        return clip(updates, norm)

    expected = PrivacyPlan.expected_cohort.fget
    patch.setattr(Engine, "clipped_total", watched_sum)
    patch.setattr(clipping_module, "clip", watched_clip)
    # Only the server divides by it; the audit must go on knowing the public number.
    real = server_module.gaussian_release

    def release(*args):
        with pytest.MonkeyPatch.context() as inner:
            wrong = property(lambda self: count(expected(self), **seen))
            inner.setattr(PrivacyPlan, "expected_cohort", wrong)
            return real(*args)

    patch.setattr(server_module, "gaussian_release", release)


def realised_cohort(patch):
    divide_by(patch, lambda expected, cohort, broken: max(cohort, 1))


def broken_clients_leave_the_denominator(patch):
    divide_by(patch, lambda expected, cohort, broken: expected - broken)


def weights_from_clients(patch):
    """As FedAvg weighs by the samples that clients say they have."""

    def clipped_total(self, params, cohort, round_, key, bound):
        updates = self.update(params, cohort, round_, key, bound.norm)
        weights = torch.from_numpy(self.data.sizes[cohort] / self.data.sizes.mean())
        clipped = clipping_module.clip(updates, bound.norm).double()
        return (clipped * weights[:, None]).sum(dim=0)

    patch.setattr(Engine, "clipped_total", clipped_total)


def same_noise_every_round(patch):
    real = SeededStreams.noise
    patch.setattr(SeededStreams, "noise", lambda self, round_: real(self, 0))


def buffers_allowed(patch):
    patch.setattr(runs, "check_model", lambda model: None)


def fixed_size_drawn_for_poisson(patch):
    def sample(self, num_clients, rng):
        size = round(self.expected_cohort(num_clients))
        return np.sort(rng.choice(num_clients, size, replace=False))

    patch.setattr(PoissonSampling, "sample", sample)


def fixed_size_with_poissons_sensitivity(patch):
    patch.setattr(FixedSizeSampling, "sensitivity_in_clip_norms", 1.0)


def nothing_paid_after_resuming(patch):
    real_open, real_spend = SqliteLedger.__init__, SqliteLedger.spend

    def opened(self, *args):
        real_open(self, *args)
        self.resumed = bool(self.entries)

    def spend(self, *args):
        if not self.resumed:
            real_spend(self, *args)

    patch.setattr(SqliteLedger, "__init__", opened)
    patch.setattr(SqliteLedger, "spend", spend)


def a_round_is_paid_for_once(patch):
    """The release is new, for its noise is; the ledger takes it for the old one by its number."""
    real = MemoryLedger.spend

    def spend(self, event, round_, nonce):
        if all(entry.round != round_ for entry in self.entries):
            real(self, event, round_, nonce)

    patch.setattr(MemoryLedger, "spend", spend)


BUGS = {  # name: (the bug, the check that catches it, the sampler)
    "noise × 0.8": (scaled_noise(0.8), many_rounds, POISSON),
    "noise × 0.8, fixed size": (scaled_noise(0.8), many_rounds, FIXED),
    "noise × 0.5": (scaled_noise(0.5), one_round, POISSON),
    "no clipping": (no_clipping, one_round, POISSON),
    "no clipping, replayed": (no_clipping, replayed, FIXED),
    "division by the realised cohort": (realised_cohort, replayed, POISSON),
    "per-layer clipping accounted as flat": (clipping_by_layer, one_round, POISSON),
    "per-layer clipping, replayed": (clipping_by_layer, replayed, FIXED),
    "client-supplied weights": (weights_from_clients, one_round, POISSON),
    "client-supplied weights, replayed": (weights_from_clients, replayed, FIXED),
    "the same noise every round": (same_noise_every_round, one_round, POISSON),
    "a NaN client dropped from the denominator": (
        broken_clients_leave_the_denominator,
        replayed,
        FIXED,
    ),
    "un-noised buffers": (buffers_allowed, buffers, POISSON),
    "fixed-size sampling accounted as Poisson, drawn": (
        fixed_size_drawn_for_poisson,
        cohorts,
        POISSON,
    ),
    "fixed-size sampling accounted as Poisson, sensitivity": (
        fixed_size_with_poissons_sensitivity,
        one_round,
        FIXED,
    ),
    "a resumed round not paid for: none after resuming": (
        nothing_paid_after_resuming,
        ledger,
        POISSON,
    ),
    "a resumed round not paid for: the one run again": (a_round_is_paid_for_once, ledger, POISSON),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_caught(name, monkeypatch, tmp_path):
    plant, check, sampler = BUGS[name]
    plant(monkeypatch)
    assert check(sampler, tmp_path), f"{name} went unnoticed"


@pytest.mark.parametrize("check", [one_round, many_rounds, replayed, cohorts, ledger, buffers])
@pytest.mark.parametrize("sampler", [POISSON, FIXED])
def test_correct_code_raises_no_alarm(check, sampler, tmp_path):
    assert check(sampler, tmp_path) == []


def test_mixing_samplers_in_one_account_is_refused():
    """No way to account silently for one sampling as for another."""
    events = [plan(sampler=sampler).round_event for sampler in (POISSON, FIXED)]
    with pytest.raises(InputError, match="cannot share one ε"):
        epsilon([(event, 1) for event in events], 1e-3)
    ours = MemoryLedger(plan(sampler=POISSON))
    with pytest.raises(InputError, match="opened for"):
        ours.spend(events[1], 0, "nonce")


def test_a_plan_that_says_one_noise_and_adds_another_does_not_exist():
    """Noise, sensitivity and event come from one number each; only a new plan changes them."""
    promised = plan(sampler=FIXED, noise_multiplier=2.0)
    assert promised.round_event.noise_over_sensitivity == pytest.approx(
        promised.noise_stddev(0.7) / promised.sensitivity(0.7)
    )
    with pytest.raises(AttributeError):
        promised.noise_multiplier = 0.1
