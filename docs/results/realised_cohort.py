"""What dividing by the realised cohort does to Table 2 (Poisson): it costs accuracy and privacy.

    DPFEDLS_DATA=… python docs/results/realised_cohort.py

The authors' code averages over the people who happened to take part. Their number is private, so
the package never does it; here, and nowhere else, a release is rescaled to see what it changes.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

from dpfedls import server
from dpfedls.runs import recipe as recipes
from dpfedls.runs.simulate import start
from dpfedls.sampling import PoissonSampling

SEEDS = range(6)
sample, release = PoissonSampling.sample, server.gaussian_release
took_part = [0]


def sample_and_count(self, num_clients, rng):
    """Draw a cohort and remember its size."""
    cohort = sample(self, num_clients, rng)
    took_part[0] = max(1, len(cohort))
    return cohort


def release_by_realised_cohort(total, plan, noise, layout):
    """The release divided by who took part: NOT private."""
    public = release(total, plan, noise, layout)
    return replace(public, value=public.value * (plan.expected_cohort / took_part[0]))


def accuracy(epsilon: int, strength: int, seed: int) -> float:
    """Of one cell of Table 2, in per cent."""
    settings = [f"calibrate.epsilon={epsilon}", f"denoiser.strength={strength}", f"seed={seed}"]
    chosen = recipes.read("mnist-logistic", [*settings, "evaluate_every=30"])
    with tempfile.TemporaryDirectory() as folder:
        return 100 * start(chosen, Path(folder) / "run").summary["accuracy"]


if __name__ == "__main__":
    PoissonSampling.sample = sample_and_count
    print("ε  σ  by expected cohort  by realised cohort   (mean of 6 seeds)")
    for epsilon in (6, 7, 8, 9):
        for strength in (0, 1):
            found = []
            for rule in (release, release_by_realised_cohort):
                server.gaussian_release = rule
                found.append(mean(accuracy(epsilon, strength, seed) for seed in SEEDS))
            print(f"{epsilon}  {strength}  {found[0]:18.2f}  {found[1]:18.2f}", flush=True)
