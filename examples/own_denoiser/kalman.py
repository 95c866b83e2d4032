"""A denoiser with memory: a filter that trusts each release as much as its noise allows."""

import torch

import dpfedls


class Kalman:
    """A random walk seen through noise; ``drift`` is the standard deviation of its steps.

    It is given public values only, so whatever it does costs no privacy. What it returns beside the
    direction comes back in the next round, and is kept in the run's checkpoint.
    """

    def __init__(self, drift: float = 0.002) -> None:
        self.drift = drift

    def start(self, layout):
        """What it remembers before the first round: nothing is known yet."""
        return {"mean": torch.zeros(layout.dim), "variance": torch.full((1,), 1.0)}

    def __call__(self, release: dpfedls.Release, memory):
        variance = memory["variance"] + self.drift**2
        gain = variance / (variance + release.noise_stddev**2)
        mean = memory["mean"] + gain * (release.value - memory["mean"])
        return mean, {"mean": mean, "variance": (1 - gain) * variance}
