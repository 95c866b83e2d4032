"""Bugs in sums, clipping and denominators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from planting import ADAPTIVE, wrap

from dpfedls import clipping as clipping_module
from dpfedls import server as server_module
from dpfedls.engine import Engine
from dpfedls.engine import engine as engine_module
from dpfedls.privacy.clipping import AdaptiveClipping, Observed
from dpfedls.server import Server


def nothing_summed(patch):
    wrap(patch, Engine, "clipped_total", lambda real, *a: torch.zeros_like(real(*a)))


def no_clipping(patch):
    patch.setattr(clipping_module, "clip", lambda updates, norm: updates)


def clipping_with_room(patch):
    wrap(patch, clipping_module, "clip", lambda real, updates, norm: real(updates, 1.2 * norm))


def clipping_with_a_little_room(patch):
    wrap(patch, clipping_module, "clip", lambda real, updates, norm: real(updates, 1.05 * norm))


def next_norm_from_the_raw_count(patch):
    def finish(real, self, state, total, noise, nonce):
        made = real(self, state, total, noise, nonce)
        clipping = self.plan.clipping
        weight = clipping.indicator(state.clip_norm) * self.plan.expected_cohort
        raw = clipping.quantile + float(total[-1]) / weight
        noise = self.plan.noise_stddev(state.clip_norm) / self.plan.expected_cohort
        seen = Observed(state.clip_norm, raw, noise, state.round, self.plan.rounds)
        return replace(made, clip_norm=clipping.following(seen)[0])

    wrap(patch, Server, "finish_round", finish)


def limit_without_noise(patch):
    def finish(real, self, state, total, noise, nonce):
        made, plan = real(self, state, total, noise, nonce), self.plan
        clean = state.params + self.step(state) * total[:-1].float() / plan.expected_cohort
        limits = [plan.clipping.of_weights * float(w.double().norm()) for w in (made.params, clean)]
        return replace(made, clip_norm=limits[1]) if made.clip_norm == limits[0] else made

    wrap(patch, Server, "finish_round", finish)


def floor_from_the_raw_count(patch):
    def finish(real, self, state, total, noise, nonce):
        made, clipping = real(self, state, total, noise, nonce), self.plan.clipping
        weight = clipping.indicator(state.clip_norm) * self.plan.expected_cohort
        raw = clipping.quantile + float(total[-1]) / weight
        exceeded = state.clip_norm if raw < clipping.quantile else 0.0
        return replace(made, exceeded=max(state.exceeded, exceeded))

    wrap(patch, Server, "finish_round", finish)


def skipped_by_the_raw_count(patch):
    def finish(real, self, state, total, noise, nonce):
        made, clipping = real(self, state, total, noise, nonce), self.plan.clipping
        weight = clipping.indicator(state.clip_norm) * self.plan.expected_cohort
        raw = clipping.quantile + float(total[-1]) / weight
        if not clipping.waits(Observed(state.clip_norm, raw, 0.0, 0, 10**6)):
            return made
        return replace(made, params=state.params, average=state.average, memory=state.memory)

    wrap(patch, Server, "finish_round", finish)


def sum_shortened(patch):
    """Clipped a second time, as a whole: no privacy is gained and the claim is another's."""

    def total(real, self, params, cohort, round_, key, bound):
        found = real(self, params, cohort, round_, key, bound)
        most = 3 * bound.norm
        return found * min(1.0, most / max(float(found.norm()), 1e-30))

    wrap(patch, Engine, "clipped_total", total)


def clipping_by_layer(patch):
    def clip(real, updates, norm):
        return torch.cat([real(piece, norm) for piece in updates.tensor_split(2, dim=1)], dim=1)

    wrap(patch, clipping_module, "clip", clip)


def sum_in_float32(patch):
    def clipped_sum(updates, bound, better=None):
        return clipping_module.clip(updates, bound.norm).sum(dim=0).double()

    patch.setattr(engine_module, "clipped_sum", clipped_sum)


def weights_by_samples(patch):
    def clipped_total(self, params, cohort, round_, key, bound):
        updates = self.update(params, cohort, round_, key, bound.norm)
        weights = torch.from_numpy(self.data.sizes[cohort] / self.data.sizes.mean())
        clipped = clipping_module.clip(updates, bound.norm).double()
        return (clipped * weights[:, None]).sum(dim=0)

    patch.setattr(Engine, "clipped_total", clipped_total)


def realised_cohort(patch):
    seen = {}

    def total(real, self, params, cohort, *args):
        seen["cohort"] = max(len(cohort), 1)
        return real(self, params, cohort, *args)

    def release(real, total, plan, *args):
        made = real(total, plan, *args)
        return replace(made, value=made.value * (plan.expected_cohort / seen["cohort"]))

    wrap(patch, Engine, "clipped_total", total)
    wrap(patch, server_module, "gaussian_release", release)


def counted_twice_across_blocks(patch):
    def blocks(real, self, cohort):
        found = list(real(self, cohort))
        return [*found[:1], *(np.append(block, cohort[0]) for block in found[1:])]

    wrap(patch, Engine, "_blocks", blocks)


def indicator_not_bounded(patch):
    wrap(patch, AdaptiveClipping, "indicator", lambda real, self, norm: 5 * real(self, norm))


FLOORED = {"clip_norm": AdaptiveClipping(start=0.01, floor=0.4)}
TOO_LONG = {"clip_norm": AdaptiveClipping(start=100.0)}
LIMITED = {"clip_norm": AdaptiveClipping(start=0.01, of_weights=0.005)}
BUGS = {  # name: (the bug, a word that the audit says, what else the audit is given)
    "nothing summed": (nothing_summed, "far below the claim", {}),
    "no clipping": (no_clipping, "the sum is not", {}),
    "no clipping up to 1.2 C": (clipping_with_room, "the sum is not", {}),
    "no clipping up to 1.05 C": (clipping_with_a_little_room, "the sum is not", {}),
    "the next norm from the raw count": (next_norm_from_the_raw_count, "clip norm", ADAPTIVE),
    "the norm's limit without noise": (limit_without_noise, "clip norm", LIMITED),
    "the norm's floor from the raw count": (floor_from_the_raw_count, "was exceeded", FLOORED),
    "a round skipped by the raw count": (skipped_by_the_raw_count, "does not follow", TOO_LONG),
    "the whole sum clipped again": (sum_shortened, "the sum is not", {}),
    "per-layer clipping accounted as flat": (clipping_by_layer, "the sum is not", {}),
    "sum in float32": (sum_in_float32, "the sum is not", {}),
    "weights by samples": (weights_by_samples, "the sum is not", {}),
    "division by the realised cohort": (realised_cohort, "the release is not", {}),
    "a client counted twice across blocks": (counted_twice_across_blocks, "each of them once", {}),
    "indicator not bounded": (indicator_not_bounded, "the sum is not", ADAPTIVE),
}  # fmt: skip
