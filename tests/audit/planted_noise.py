"""Bugs in the noise: too little, too coarse, drawn twice, or left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from planting import ADAPTIVE, wrap

from dpfedls import server as server_module
from dpfedls.privacy.clipping import Observed
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.simulation import Simulation


def scaled_noise(factor, owner=SystemStreams):
    def plant(patch):
        wrap(patch, owner, "noise", lambda real, s, t: lambda *a: real(s, t)(*a) * factor)

    return plant


def drawn(change):
    """Alter what the deployed streams draw."""

    def plant(patch):
        wrap(patch, SystemStreams, "noise", lambda real, s, t: lambda *a: change(real(s, t)(*a)))

    return plant


def halves(values):
    half = len(values) // 2
    values[half : 2 * half] = values[:half]
    return values


def noise_for_two_rounds(patch):
    wrap(patch, SeededStreams, "noise", lambda real, s, t: real(s, t - t % 2))


def noise_for_two_rounds_of_the_loop(patch):
    def run_round(real, self, state):
        noise = self.streams.noise
        streams = type("Shared", (), {})()
        for name in ("sampling", "shuffling", "nonce"):
            setattr(streams, name, getattr(self.streams, name))
        streams.noise = lambda t: noise(t - t % 2)
        return real(replace(self, streams=streams), state)

    wrap(patch, Simulation, "run_round", run_round)


def last_coordinate_without_noise(patch):
    def release(real, total, plan, norm, t, noise, layout):
        def less(*shape):
            values = noise(*shape)
            values[-1] = 0.0
            return values

        return real(total, plan, norm, t, less, layout)

    wrap(patch, server_module, "gaussian_release", release)


def short_key(patch):
    import secrets

    wrap(patch, secrets, "randbits", lambda real, bits: real(min(bits, 32)))


def server_noise_scaled(factor):
    def plant(patch):
        def release(real, total, plan, norm, t, noise, layout):
            return real(total, plan, norm, t, lambda *a: noise(*a) * factor, layout)

        wrap(patch, server_module, "gaussian_release", release)

    return plant


def noise_of_the_next_norm(patch):
    """As Flower 1.41 does: the count moves the norm first, and noise follows the new one."""

    def release(real, total, plan, norm, t, noise, layout):
        drawn = noise(len(total), total.device)
        made = real(total, plan, norm, t, lambda *a: drawn.clone(), layout)
        seen = Observed(norm, made.inside, made.noise_stddev, t, plan.rounds)
        later, _ = plan.clipping.following(seen)
        noisy = total + plan.noise_stddev(later) * drawn
        return replace(made, value=(noisy[: layout.dim] / plan.expected_cohort).float())

    wrap(patch, server_module, "gaussian_release", release)


def noise_changed(change):
    """Alter the noise between the streams and the sum; ``change`` is given the layout too."""

    def plant(patch):
        def release(real, total, plan, norm, t, noise, layout):
            return real(total, plan, norm, t, lambda *a: change(noise(*a), layout), layout)

        wrap(patch, server_module, "gaussian_release", release)

    return plant


def last_tensor_bare(drawn, layout):
    sizes = [int(np.prod(shape)) for shape in layout.shapes]
    drawn[layout.dim - sizes[-1] : layout.dim] = 0.0
    return drawn


def prefix_only(drawn, layout):
    drawn[layout.dim // 2 : layout.dim] = 0.0
    return drawn


def indicator_bare(drawn, layout):
    drawn[layout.dim :] = 0.0
    return drawn


def cached_for_the_empty_cohort(patch):
    kept = []

    def release(real, total, plan, norm, t, noise, layout):
        def draw(dim, device):
            if total.any():
                return noise(dim, device)
            if not kept or len(kept[0]) != dim:
                kept[:] = [noise(dim, device)]
            return kept[0].clone()

        return real(total, plan, norm, t, draw, layout)

    wrap(patch, server_module, "gaussian_release", release)


def empty_rounds_skipped(patch):
    def run_round(real, self, state):
        cohort = self.server.plan.sampler.sample(
            self.server.plan.num_clients, self.streams.sampling(state.round)
        )
        return real(self, state) if len(cohort) else replace(state, round=state.round + 1)

    wrap(patch, Simulation, "run_round", run_round)


def noise_of_its_own(patch):
    def release(real, total, plan, norm, t, noise, layout):
        own = np.random.default_rng()
        draw = lambda dim, device: torch.from_numpy(own.standard_normal(dim))  # noqa: E731
        return real(total, plan, norm, t, draw, layout)

    wrap(patch, server_module, "gaussian_release", release)


def the_better_of_two_releases(patch):
    def release(real, *args):
        return min((real(*args) for _ in range(2)), key=lambda made: float(made.value.norm()))

    wrap(patch, server_module, "gaussian_release", release)


def keys_by_the_clock(patch):
    import random
    import secrets
    import time

    patch.setattr(
        secrets, "randbits", lambda bits: random.Random(time.perf_counter_ns()).getrandbits(bits)
    )


def count_unrounded(patch):
    def release(real, total, plan, norm, t, noise, layout):
        drawn = noise(len(total), total.device)
        made = real(total, plan, norm, t, lambda *a: drawn.clone(), layout)
        noisy = float(total[-1] + plan.noise_stddev(norm) * drawn[-1])
        share = noisy / (plan.clipping.indicator(norm) * plan.expected_cohort)
        return replace(made, inside=plan.clipping.quantile + share)

    wrap(patch, server_module, "gaussian_release", release)


BUGS = {  # name: (the bug, a word that the audit says, what else the audit is given)
    "deployed noise × 0.95": (scaled_noise(0.95), "variance", {}),
    "deployed noise × 0.97": (scaled_noise(0.97), "variance", {}),
    "seeded noise × 0.97": (scaled_noise(0.97, SeededStreams), "variance", {}),
    "noise × 0.97 at the server": (server_noise_scaled(0.97), "the release is not", {}),
    "deployed noise in float16": (drawn(lambda v: v.half().double()), "low bits", {}),
    "deployed noise in float32": (drawn(lambda v: v.float()), "float", {}),
    "second half of deployed noise repeats the first": (drawn(halves), "correlated", {}),
    "noise shared by rounds 1–2, 3–4": (noise_for_two_rounds, "correlated", {}),
    "the loop asks for one noise twice": (noise_for_two_rounds_of_the_loop, "noise of its own", {}),
    "last coordinate without noise": (last_coordinate_without_noise, "the release is not", {}),
    "a 32-bit key": (short_key, "bits of its keys", {}),
    "noise of the next norm": (noise_of_the_next_norm, "the release is not", ADAPTIVE),
    "noise rounded to float32 before it is added": (
        noise_changed(lambda drawn, _: drawn.float().double()), "the release is not", {},
    ),
    "the noisy count in all its bits": (count_unrounded, "low bits", ADAPTIVE),
    "one tensor without noise": (noise_changed(last_tensor_bare), "the release is not", {}),
    "noise on the first half of the model": (
        noise_changed(prefix_only), "the release is not", {},
    ),
    "indicator without noise": (noise_changed(indicator_bare), "the release is not", ADAPTIVE),
    "noise kept for empty cohorts": (cached_for_the_empty_cohort, "drew noise", {}),
    "rounds without a cohort left out": (empty_rounds_skipped, "is left out", {}),
    "the server draws noise by itself": (noise_of_its_own, "drew noise", {}),
    "the better of two releases": (the_better_of_two_releases, "drew noise", {}),
    "keys by the clock": (keys_by_the_clock, "from the operating system", {}),
}  # fmt: skip
