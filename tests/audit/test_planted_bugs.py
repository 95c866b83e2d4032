"""Bugs that real systems have had, planted in the real code one at a time: the audit names each.

The audit checks properties and knows none of these bugs. Its false alarms: about three in ten
thousand audits. Simulated streams are seeded; deployed ones cannot be. The page lists what is not
in its reach, and what holds that instead.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpfedls import (
    BudgetExhausted,
    ClientData,
    FixedSizeSampling,
    LaplacianSmoothing,
    Momentum,
    PoissonSampling,
    PrivacyPlan,
)
from dpfedls import clipping as clipping_module
from dpfedls import server as server_module
from dpfedls.auditing import noise as noise_module
from dpfedls.auditing.recipe import audit
from dpfedls.engine import Engine
from dpfedls.engine import engine as engine_module
from dpfedls.privacy import hash_chain
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.runs import run as run_module
from dpfedls.runs.folder import RunFolder
from dpfedls.runs.origin import OwnCode
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.writing_behind import WrittenFirst
from dpfedls.server import Server
from dpfedls.simulation import Simulation
from dpfedls.tasks.task import Task
from federations import linear_clients, local

POISSON, FIXED = PoissonSampling(rate=0.3), FixedSizeSampling(cohort=12)


def people(num_clients=40):
    rng = np.random.default_rng(0)
    pairs = [
        tuple(part[: rng.integers(1, 7)] for part in pair) for pair in linear_clients(num_clients)
    ]
    torch.manual_seed(0)
    held = tuple(torch.cat(parts) for parts in zip(*linear_clients(9, seed=5), strict=True))
    data = ClientData.from_pairs([(x[: len(y)], y[: len(x)]) for x, y in pairs])
    return Task(data, nn.Linear(4, 3), held)


def look(sampler=POISSON, trials=60, **changes):
    """One small audit; what it finds wrong."""
    promised = PrivacyPlan(
        sampler=sampler,
        num_clients=40,
        rounds=4,
        clip_norm=changes.pop("clip_norm", 0.5),
        noise_multiplier=1.0,
        delta=1e-2,
    )
    recipe = Recipe(
        task="given in Python",
        plan=promised,
        local=local(),
        engine="vmapped",
        averaging=0.7,
        block_size=5,
        denoiser=changes.pop("denoiser", LaplacianSmoothing(strength=1.0)),
        seed=3,
    )
    return audit(recipe, people(), trials=trials)["problems"]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(noise_module, "DRAWS", 2**16)


def wrap(patch, owner, name, change):
    """Replace a function by one that is given the real one first."""
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **named: change(real, *args, **named))


# Noise.


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
        later = plan.clipping.following(norm, made.inside, t, made.noise_stddev)
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


# Sums, clipping, denominators.


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
        later = clipping.following(state.clip_norm, raw, state.round, noise)
        return replace(made, clip_norm=later)

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
    def clipped_sum(updates, bound):
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


# Sampling.


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


# What leaves.


def half_raw_to_the_denoiser(patch):
    def release(real, total, plan, norm, t, noise, layout):
        made = real(total, plan, norm, t, noise, layout)
        raw = (total[: layout.dim] / plan.expected_cohort).float()
        return replace(made, value=0.5 * made.value + 0.5 * raw)

    wrap(patch, server_module, "gaussian_release", release)


def raw_average(patch):
    def finish(real, self, state, total, noise, nonce):
        made = real(self, state, total, noise, nonce)
        raw = state.average + (total[: self.layout.dim] / self.plan.expected_cohort).float()
        return replace(made, average=raw)

    wrap(patch, Server, "finish_round", finish)


def finished(change):
    """Alter the state after a round; ``change`` is given the server, the state and the raw sum."""

    def plant(patch):
        def finish(real, self, state, total, noise, nonce):
            made = real(self, state, total, noise, nonce)
            raw = (total[: self.layout.dim] / self.plan.expected_cohort).float()
            return change(made, raw)

        wrap(patch, Server, "finish_round", finish)

    return plant


def a_trace_in_the_average(made, raw):
    return replace(made, average=made.average + 1e-5 * raw)


def raw_sum_in_memory(made, raw):
    return replace(made, memory=made.memory | {"last": raw})


def raw_sum_in_a_known_memory(made, raw):
    return replace(made, memory={name: tensor + raw for name, tensor in made.memory.items()})


def momentum_of_the_raw_sum(patch):
    def finish(real, self, state, total, noise, nonce):
        made = real(self, state, total, noise, nonce)
        raw = (total[: self.layout.dim] / self.plan.expected_cohort).float()
        return replace(made, params=made.params + 0.1 * raw)

    wrap(patch, Server, "finish_round", finish)


def raw_sum_in_the_folder(patch):
    sums = []

    def finish(real, self, state, total, noise, nonce):
        sums.append(total)
        return real(self, state, total, noise, nonce)

    def record(real, self, line, state):
        np.save(self.folder / "total.npy", sums[-1].numpy())
        return real(self, line, state)

    wrap(patch, Server, "finish_round", finish)
    wrap(patch, RunFolder, "record", record)


def norm_in_the_log(patch):
    norms = []

    def finish(real, self, state, total, noise, nonce):
        norms.append(float(torch.linalg.vector_norm(total)))
        return real(self, state, total, noise, nonce)

    def record(real, self, line, state):
        real(self, line, state)
        self._writer.finish()
        path = self.folder / "rounds.jsonl"
        end = b',"norm":%f}\n' % norms[-1]
        path.write_bytes(path.read_bytes()[:-2] + end)

    wrap(patch, Server, "finish_round", finish)
    wrap(patch, RunFolder, "record", record)


def clipped_share_logged(patch):
    def total(real, self, params, cohort, *args):
        import logging

        logging.getLogger("dpfedls").debug("cohort of %d", len(cohort))
        return real(self, params, cohort, *args)

    wrap(patch, Engine, "clipped_total", total)


def accuracy_on_training_data(patch):
    def evaluated(real, self, line):
        pairs = [self.task.data.client(j) for j in range(20)]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        task = self.task
        self.task = replace(task, test=(x, y))
        try:
            return real(self, line)
        finally:
            self.task = task

    wrap(patch, run_module.Run, "_evaluated", evaluated)


def best_model_by_private_loss(patch):
    kept = []

    def evaluated(real, self, line):
        found = real(self, line)
        pairs = [self.task.data.client(j) for j in range(20)]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        loss = float(nn.functional.cross_entropy(self.model(x), y))
        kept.append((loss, self.state.average))
        return found

    def sealed(real, self, exhausted):
        best = max(kept, key=lambda pair: pair[0])[1]  # the worst here, so that it is another one
        self.state = replace(self.state, average=best)
        return real(self, exhausted)

    wrap(patch, run_module.Run, "_evaluated", evaluated)
    wrap(patch, run_module.Run, "_sealed", sealed)


def seconds_when_deployed(patch):
    def record(real, self, line, state):
        import msgspec

        return real(self, msgspec.structs.replace(line, seconds=0.123), state)

    wrap(patch, RunFolder, "record", record)


def model_given(change):
    """Alter what is handed out at the end; ``change`` is given the run."""

    def plant(patch):
        def sealed(real, self, exhausted):
            change(self)
            return real(self, exhausted)

        wrap(patch, run_module.Run, "_sealed", sealed)

    return plant


def a_buffer(run):
    run.model.register_buffer("seen", torch.tensor(float(run.task.data.features.abs().max())))


def an_attribute(run):
    run.model.samples = run.task.data.client(0)


def a_tensor_more(patch):
    def save(real, tensors, described):
        return real(tensors | {"counts": torch.ones(3)}, described)

    wrap(patch, importlib.import_module("dpfedls.runs.folder"), "save_model", save)


def metadata_more(patch):
    def save(real, tensors, described):
        return real(tensors, described | {"cohort": "3 5 9"})

    wrap(patch, importlib.import_module("dpfedls.runs.folder"), "save_model", save)


def with_cohorts(act):
    """``act`` is given the folder, and who was drawn, whenever a round is recorded."""

    def plant(patch):
        drawn = []

        def total(real, self, params, cohort, *args):
            drawn.append(cohort)
            return real(self, params, cohort, *args)

        def record(real, self, line, state):
            real(self, line, state)
            act(self.folder, drawn[-1])

        wrap(patch, Engine, "clipped_total", total)
        wrap(patch, RunFolder, "record", record)

    return plant


def beside_the_folder(folder, cohort):
    (folder.parent.parent / "cohorts.log").write_text(str(cohort.tolist()))


def in_the_rights(folder, cohort):
    (folder / "recipe.toml").chmod(0o600 + len(cohort) % 8)


def in_the_times(folder, cohort):
    import os

    os.utime(folder / "recipe.toml", (len(cohort), len(cohort)))


def in_a_comment(folder, cohort):
    path = folder / "recipe.toml"
    path.write_text(path.read_text() + f"# {len(cohort)}\n")


def over_the_network(folder, cohort):
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.sendto(cohort.tobytes(), ("127.0.0.1", 9))


def long_updates_printed(patch):
    def clip(real, updates, norm):
        import logging

        for row in updates[updates.norm(dim=1) > 1e3 * norm]:
            logging.getLogger("dpfedls").warning("an odd update begins with %s", row[:3].tolist())
        return real(updates, norm)

    wrap(patch, clipping_module, "clip", clip)


def stopped_by_a_private_norm(patch):
    def finish(real, self, state, total, noise, nonce):
        if isinstance(self.ledger, WrittenFirst) and state.round == 3 and total.norm() > 0:
            raise BudgetExhausted("the sum is short enough")
        return real(self, state, total, noise, nonce)

    wrap(patch, Server, "finish_round", finish)


def samples_counted_in_the_notes(patch):
    def notes(real, run):
        made = real(run)
        return made | {"engine": f"{made['engine']}; {float(run.task.data.features.abs().max())}"}

    wrap(patch, run_module, "_notes", notes)


def attributes_of_a_loss_in_the_notes(patch):
    """The same whoever is there, so that only its place gives it away."""

    class Told(OwnCode, frozen=True):
        settings: str = ""

    def notes(real, run):
        return real(run) | {"own_code": [Told("loss", "mine:Loss", settings="[71, 66]")]}

    wrap(patch, run_module, "_notes", notes)


# Payment.


def statement_with(**changes):
    def plant(patch):
        wrap(patch, run_module, "statement", lambda real, *a, **k: real(*a, **k) | changes)

    return plant


def delta_of_everybody(patch):
    """In every place at once, so that nothing disagrees."""
    for module in (run_module, importlib.import_module("dpfedls.runs.verify")):
        wrap(patch, module, "statement", lambda real, *a, **k: real(*a, **k) | {"delta": 1e-9})


def ledger_rewound_on_resume(patch):
    """What was paid for and lost is forgotten, as where the account lies in the checkpoint."""

    def last_state(real, self, start):
        state = real(self, start)
        ledger = self.ledger
        ledger._connection.executescript("DROP TRIGGER no_delete; DROP TRIGGER no_update;")
        ledger._connection.execute("DELETE FROM entries WHERE seq > ?", (state.round + 1,))
        ledger.entries = dict.fromkeys(list(ledger.entries)[: state.round])
        ledger.heads = ledger.heads[: state.round + 2]
        return state

    wrap(patch, RunFolder, "last_state", last_state)


def spend_after_release(patch):
    def finish(real, self, state, total, noise, nonce):
        made = real(replace(self, ledger=MemoryLedger(self.plan)), state, total, noise, nonce)
        self.ledger.spend(self.plan.round_event, state.round, nonce)
        return made

    wrap(patch, Server, "finish_round", finish)


def not_on_disk(patch):
    text = hash_chain._SCHEMA.replace("synchronous = FULL", "synchronous = OFF")
    patch.setattr(hash_chain, "_SCHEMA", text)


def one_round_more(patch):
    module = importlib.import_module("dpfedls.privacy.ledger")
    wrap(patch, module, "_affordable", lambda real, plan, budget: real(plan, budget) + 1)


def nonce_by_round(patch):
    patch.setattr(SystemStreams, "nonce", lambda self, round_: f"{round_:032x}")


def epsilon_for_more_noise(patch):
    import msgspec

    def epsilon(real, spent, *args, **named):
        more = [
            (msgspec.structs.replace(event, noise_multiplier=1.05 * event.noise_multiplier), count)
            for event, count in spent
        ]
        return real(more, *args, **named)

    for name in ("accountants", "ledger", "statement", "curve"):
        module = importlib.import_module(f"dpfedls.privacy.{name}")
        if hasattr(module, "epsilon"):
            wrap(patch, module, "epsilon", epsilon)
        if hasattr(module, "profile"):
            wrap(patch, module, "profile", epsilon)
    importlib.import_module("dpfedls.privacy.curve")._by_round.cache_clear()
    importlib.import_module("dpfedls.privacy.statement")._cost.cache_clear()


ADAPTIVE = {"clip_norm": AdaptiveClipping()}
MANY = {"trials": 100}
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
    "nothing summed": (nothing_summed, "far below the claim", {}),
    "no clipping": (no_clipping, "the sum is not", {}),
    "no clipping up to 1.2 C": (clipping_with_room, "the sum is not", {}),
    "no clipping up to 1.05 C": (clipping_with_a_little_room, "the sum is not", {}),
    "the next norm from the raw count": (next_norm_from_the_raw_count, "clip norm", ADAPTIVE),
    "the whole sum clipped again": (sum_shortened, "the sum is not", {}),
    "per-layer clipping accounted as flat": (clipping_by_layer, "the sum is not", {}),
    "sum in float32": (sum_in_float32, "the sum is not", {}),
    "weights by samples": (weights_by_samples, "the sum is not", {}),
    "division by the realised cohort": (realised_cohort, "the release is not", {}),
    "a client counted twice across blocks": (counted_twice_across_blocks, "each of them once", {}),
    "indicator not bounded": (indicator_not_bounded, "the sum is not", ADAPTIVE),
    "shared cohorts": (shared_cohorts, "two rounds are too much alike", MANY),
    "shuffled epochs instead of sampling": (
        shuffled_epochs, "cohorts of", {"sampler": FIXED} | MANY,
    ),
    "fixed size drawn for Poisson": (fixed_size_for_poisson, "do not vary", MANY),
    "larger clients sampled more often": (larger_clients_more_often, "takes part more", MANY),
    "cohorts again after resuming": (cohorts_again_after_resuming, "after a crash", {}),
    "fixed size with Poisson's sensitivity": (half_sensitivity, "μ >=", {"sampler": FIXED}),
    "half-raw release to the denoiser": (half_raw_to_the_denoiser, "the release is not", {}),
    "a trace of the raw sum in the average": (
        finished(a_trace_in_the_average), "checkpoint does not follow", {},
    ),
    "raw sum in the denoiser's memory": (finished(raw_sum_in_memory), "one stopped", {}),
    "raw sum added to a momentum's memory": (
        finished(raw_sum_in_a_known_memory), "does not follow", {"denoiser": Momentum()},
    ),
    "a buffer of the model that saw samples": (model_given(a_buffer), "holds more", {}),
    "samples kept with the model": (model_given(an_attribute), "holds more", {}),
    "a tensor more in model.safetensors": (a_tensor_more, "no parameters", {}),
    "cohorts in model.safetensors' metadata": (metadata_more, "says more of itself", {}),
    "cohorts in a file beside the folder": (
        with_cohorts(beside_the_folder), "writes cohorts.log", {},
    ),
    "cohort size in a file's rights": (with_cohorts(in_the_rights), "os.chmod", {}),
    "cohort size in a file's times": (with_cohorts(in_the_times), "os.utime", {}),
    "cohort size in a comment of recipe.toml": (
        with_cohorts(in_a_comment), "another plan, budget or recipe", {},
    ),
    "cohorts over the network": (with_cohorts(over_the_network), "socket.sendto", {}),
    "an odd update printed": (long_updates_printed, "logged or printed", {}),
    "stopped early by a private norm": (stopped_by_a_private_norm, "fewer, rounds", {}),
    "largest sample in notes.json": (samples_counted_in_the_notes, "notes.json tells", {}),
    "attributes of a loss in notes.json": (
        attributes_of_a_loss_in_the_notes, "more of own code", {},
    ),
    "averaged output without noise": (raw_average, "checkpoint does not follow", {}),
    "server momentum on the raw sum": (momentum_of_the_raw_sum, "checkpoint does not follow", {}),
    "raw sum saved in the run folder": (raw_sum_in_the_folder, "total.npy", {}),
    "norm of the sum in rounds.jsonl": (norm_in_the_log, "'norm' should not be", {}),
    "size of the cohort in a log message": (clipped_share_logged, "logged or printed", {}),
    "logged accuracy on training data": (accuracy_on_training_data, "on the test set", {}),
    "best model by private loss": (best_model_by_private_loss, "does not follow", {}),
    "seconds in the deployed log": (seconds_when_deployed, "'seconds' should not be", {}),
    "spending after release": (spend_after_release, "before its payment", {}),
    "synchronous = OFF": (not_on_disk, "wait for the disk", {}),
    "budget + 1": (one_round_more, "would pay for another", {}),
    "ledger rewound on resume": (ledger_rewound_on_resume, "payments are not those", {}),
    "δ edited in the statement": (statement_with(delta=1e-9), "says delta", {}),
    "another δ stated everywhere": (delta_of_everybody, "δ that is stated", {}),
    "a statement that says more": (
        statement_with(cohorts=[3, 5]), "which no statement has", {},
    ),
    "nonce fixed by round": (nonce_by_round, "nonces", {}),
    "ε for 5 % more noise": (epsilon_for_more_noise, "an ε is smaller", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_the_audit_names_the_bug(name, monkeypatch):
    plant, word, given = BUGS[name]
    plant(monkeypatch)
    problems = look(**given)
    if plant in (epsilon_for_more_noise, half_sensitivity):  # what they cost is remembered
        monkeypatch.undo()
        importlib.import_module("dpfedls.privacy.curve")._by_round.cache_clear()
        importlib.import_module("dpfedls.privacy.statement")._cost.cache_clear()
    assert any(word in text for text in problems), problems


@pytest.mark.parametrize("sampler", [POISSON, FIXED])
@pytest.mark.parametrize("clip_norm", [0.5, AdaptiveClipping()])
def test_correct_code_raises_no_alarm(sampler, clip_norm):
    """False alarms: about 3e-4 each, in the deployed part only, since the rest is seeded."""
    assert look(sampler, clip_norm=clip_norm) == []


def test_the_page_lists_every_planted_bug_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    table = page.partition("### Planted bugs")[2]
    rows = [line for line in table.splitlines() if line.endswith("” |")]
    wanted = [f"| {name} | audit: “{word}” |" for name, (_, word, _) in BUGS.items()]
    assert rows == wanted
    assert f"plants each of these {len(BUGS)}" in table
