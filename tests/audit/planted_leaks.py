"""Bugs by which more leaves than the releases."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import torch
from planting import wrap
from torch import nn

from dpfedls import BudgetExhausted, Identity, Momentum
from dpfedls import clipping as clipping_module
from dpfedls import server as server_module
from dpfedls.engine import Engine
from dpfedls.engine import engine as engine_module
from dpfedls.people.rescale import Rescale
from dpfedls.people.survey import Measured
from dpfedls.runs import run as run_module
from dpfedls.runs import simulate as simulate_module
from dpfedls.runs.folder import RunFolder
from dpfedls.runs.origin import OwnCode
from dpfedls.runs.writing_behind import WrittenFirst
from dpfedls.server import Server


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


def units_of_private_inputs(patch):
    def units(real, recipe, task):
        features = task.data.features
        return real(recipe, replace(task, test=(features, task.data.targets)))

    wrap(patch, simulate_module, "units_of", units)


def units_of_raw_answers(patch):
    """The sum of the answers, before its noise, moves what is asked next."""

    def finish(real, self, state, total, noise, nonce):
        made = real(self, state, total, noise, nonce)
        if state.survey and self.survey.question(state.survey):
            moved = made.survey["reach"] + total[0].float()
            made = replace(made, survey=made.survey | {"reach": moved})
        return made

    wrap(patch, Server, "finish_round", finish)


def answers_that_are_not_clipped(patch):
    def sum_of(real, updates, bound, better=None):
        made = real(updates, bound, better)
        return made if bound.question is None else made + 0.01 * updates.double().sum()

    wrap(patch, engine_module, "clipped_sum", sum_of)


def answers_beside_those_of_others(patch):
    def answers(real, self, params, block, bound):
        made = real(self, params, block, bound)
        return made - made.mean(dim=0)

    wrap(patch, Engine, "answers", answers)


def scores_by_raw_answers(patch):
    """The sum of the answers, before its noise, moves the last layer."""

    def finish(real, self, state, total, noise, nonce):
        made = real(self, state, total, noise, nonce)
        if self.rescaling and self.rescales(state):
            moved = made.params.clone()
            moved[-1] += 1e-3 * total[0].float()
            made = replace(made, params=moved, average=moved)
        return made

    wrap(patch, Server, "finish_round", finish)


RESCALED = {"rescale": Rescale(rounds=1), "denoiser": Identity()}
MEASURED = {"standardise": Measured(first=1, sizes=1), "denoiser": Identity()}
BUGS = {  # name: (the bug, a word that the audit says, what else the audit is given)
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
    "mean and scale of people's own inputs": (
        units_of_private_inputs, "did not start from the public model", {"standardise": True},
    ),
    "units by answers without noise": (
        units_of_raw_answers, "does not follow from the releases", MEASURED,
    ),
    "answers that are not clipped": (
        answers_that_are_not_clipped, "the sum is not", MEASURED,
    ),
    "answers beside those of others": (
        answers_beside_those_of_others, "changes another person", MEASURED,
    ),
    "a last layer by answers without noise": (
        scores_by_raw_answers, "does not follow from the releases", RESCALED,
    ),
    "slopes beside those of others": (
        answers_beside_those_of_others, "changes another person", RESCALED,
    ),
}  # fmt: skip
