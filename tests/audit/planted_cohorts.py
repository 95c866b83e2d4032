"""Bugs in who is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from planting import FIXED, MANY, people, wrap

from dpfedls import FixedSizeSampling, PoissonSampling
from dpfedls.randomness import SeededStreams
from dpfedls.simulation import Simulation


def shared_cohorts(patch):
    wrap(patch, SeededStreams, "sampling", lambda real, self, t: real(self, t - t % 2))


def shuffled_epochs(patch):
    left = []

    def sample(self, num_clients, rng):
        size = round(self.expected_cohort(num_clients))
        if len(left) < size:
            left[:] = rng.permutation(num_clients).tolist()
        chosen, left[:] = left[:size], left[size:]
        return np.sort(np.array(chosen))

    patch.setattr(FixedSizeSampling, "sample", sample)


def fixed_size_for_poisson(patch):
    def sample(self, num_clients, rng):
        size = round(self.expected_cohort(num_clients))
        return np.sort(rng.choice(num_clients, size, replace=False))

    patch.setattr(PoissonSampling, "sample", sample)


def larger_clients_more_often(patch):
    sizes = people().data.sizes

    def sample(self, num_clients, rng):
        rates = self.rate * sizes[np.arange(num_clients) % len(sizes)] / sizes.mean()
        return np.flatnonzero(rng.random(num_clients) < rates)

    patch.setattr(PoissonSampling, "sample", sample)


def cohorts_again_after_resuming(patch):
    """The round is counted from where this process began."""
    began = {}

    def run_round(real, self, state):
        first = began.setdefault(id(self), state.round)
        sampling = self.streams.sampling
        streams = type("Late", (), {"sampling": lambda _, t: sampling(t - first)})()
        for name in ("shuffling", "nonce", "noise"):
            setattr(streams, name, getattr(self.streams, name))
        return real(replace(self, streams=streams), state)

    wrap(patch, Simulation, "run_round", run_round)


def half_sensitivity(patch):
    patch.setattr(FixedSizeSampling, "sensitivity_in_clip_norms", 1.0)


BUGS = {  # name: (the bug, a word that the audit says, what else the audit is given)
    "shared cohorts": (shared_cohorts, "two rounds are too much alike", MANY),
    "shuffled epochs instead of sampling": (
        shuffled_epochs, "cohorts of", {"sampler": FIXED} | MANY,
    ),
    "fixed size drawn for Poisson": (fixed_size_for_poisson, "do not vary", MANY),
    "larger clients sampled more often": (larger_clients_more_often, "takes part more", MANY),
    "cohorts again after resuming": (cohorts_again_after_resuming, "after a crash", {}),
    "fixed size with Poisson's sensitivity": (half_sensitivity, "μ >=", {"sampler": FIXED}),
}  # fmt: skip
