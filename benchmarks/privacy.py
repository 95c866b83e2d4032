"""What privacy costs in time: noise, ledger, calibration. python benchmarks/privacy.py."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dpfedls.privacy.accountants import noise_multiplier_for
from dpfedls.privacy.ledger import SqliteLedger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.sampling import FixedSizeSampling, PoissonSampling

DIM, REPEATS = 3_431_754, 5  # the paper's CNN


def seconds(action: Callable[[], object]) -> float:
    """Median wall-clock time of the action."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Print coordinates a second on one core, milliseconds a payment, seconds a calibration."""
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    for name, streams in (("deployed", SystemStreams()), ("simulation", SeededStreams(0))):
        rate = DIM / seconds(lambda streams=streams: streams.noise(0)(DIM, cpu))
        print(f"{name} noise: {rate / 1e6:.1f} million coordinates a second on one core")
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=0.05),
        num_clients=2000,
        rounds=1000,
        clip_norm=0.7,
        noise_multiplier=1.0,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        SqliteLedger(Path(folder) / "ledger.sqlite", plan) as ledger,
    ):
        rounds = iter(range(plan.rounds))

        def pay() -> None:
            for _ in range(100):
                ledger.spend(plan.round_event, next(rounds), "benchmark")

        print(f"ledger: {10 * seconds(pay):.2f} ms a payment, on disk before it returns")
    worst = max(map(_calibration, itertools.product((0.1, 1.0, 10.0), (10, 500), (1, 100, 2000))))
    print(f"calibration: {worst:.2f} s at the worst of 36 settings")


def _calibration(setting: tuple[float, int, int]) -> float:
    target, cohort, rounds = setting
    times = []
    for sampler in (PoissonSampling(rate=cohort / 1000), FixedSizeSampling(cohort=cohort)):
        began = time.perf_counter()
        noise_multiplier_for(target, sampler=sampler, num_clients=1000, rounds=rounds, delta=1e-5)
        times.append(time.perf_counter() - began)
    return max(times)


if __name__ == "__main__":
    main()
