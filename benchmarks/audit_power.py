"""How often the audit finds noise of a wrong scale. python benchmarks/audit_power.py --repeats 100.

Each repetition draws anew what one ``dpfedls audit`` draws: the deployed generator by itself, and
noise of its cheap rounds. A factor of 1 counts false alarms.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import torch
from scipy import stats

from dpfedls.auditing import noise
from dpfedls.auditing.bounds import scale_error_found
from dpfedls.auditing.recipe import TRIALS
from dpfedls.auditing.worlds import SHAPE
from dpfedls.randomness import SystemStreams

DIM = (SHAPE[0] + 1) * SHAPE[1]  # of the made-up model: weights and biases


@contextmanager
def scaled(factor: float):
    """Deployed noise times a factor, as a bug would make it."""
    real = SystemStreams.noise
    SystemStreams.noise = lambda self, t: lambda *a: real(self, t)(*a).mul_(factor)
    try:
        yield
    finally:
        SystemStreams.noise = real


def by_itself() -> bool:
    """Whether the deployed generator looks wrong."""
    return bool(noise.stream_problems(SystemStreams()))


def in_rounds() -> bool:
    """Whether the noise of as many rounds as an audit makes does."""
    streams = SystemStreams()
    drawn = [streams.noise(t)(DIM, torch.device("cpu")).numpy() for t in range(TRIALS)]
    return bool(noise.noise_problems(np.stack(drawn)))


def main() -> None:
    """Print, for each factor, how often each look finds it, with a 95 % interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--factors", type=float, nargs="+", default=[0.97, 0.99, 1.0])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    looks: dict[str, tuple[Callable[[], bool], int]] = {
        "deployed noise": (by_itself, noise.DRAWS),
        "cheap rounds": (in_rounds, TRIALS * DIM),
    }
    for name, (look, values) in looks.items():
        error = scale_error_found(values, noise.FALSE_ALARMS / 10)
        print(f"{name}: {values} values; by the formula an error of {100 * error:.2f} % is found")
        print("  in 99 audits of 100")
        for factor in asked.factors:
            began = time.perf_counter()
            with scaled(factor):
                found = sum(look() for _ in range(asked.repeats))
            seconds = (time.perf_counter() - began) / asked.repeats
            low, high = stats.binomtest(found, asked.repeats).proportion_ci(0.95)
            print(
                f"  noise × {factor:g}: found {found} times of {asked.repeats} "
                f"({100 * low:.1f} % to {100 * high:.1f} %), {seconds:.2f} s each",
                flush=True,
            )


if __name__ == "__main__":
    main()
