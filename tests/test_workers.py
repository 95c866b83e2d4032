"""Real processes: two ranks on this machine, with and without torchrun around them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from dpfedls import ClientData, InputError, PoissonSampling
from dpfedls.experiments import recipe as recipes
from dpfedls.experiments import run as runs
from dpfedls.experiments.folder import read_rounds
from dpfedls.experiments.verify import verify
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.server import Server
from dpfedls.simulation import federate
from dpfedls.workers import Alone, Ranks, share
from federations import linear_clients, local, plan, start_model

SMALL = ["plan.num_clients=60", "plan.noise_multiplier=1.0", "plan.rounds=8"]
LONG = [*SMALL, "plan.rounds=150", "evaluate_every=50"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@given(st.lists(st.integers(0, 10_000), max_size=60), st.integers(1, 9))
def test_every_client_falls_to_one_rank_and_no_rank_has_much_more_to_do(sizes, ranks):
    work = np.array(sizes, dtype=np.int64)
    clients = np.arange(100, 100 + len(work))
    parts = [share(clients, work, rank, ranks) for rank in range(ranks)]
    assert sorted(np.concatenate(parts)) == list(clients)
    loads = [work[part - 100].sum() for part in parts]
    assert max(loads) - min(loads) <= work.max(initial=0)


def test_the_parts_of_a_round_add_up_to_the_whole():
    """Clients of very different sizes, and three ranks, each of which has something to add."""

    class Part(Alone):
        def __init__(self, rank, ranks):
            self.rank, self.size = rank, ranks

        def share(self, clients, work):
            return share(clients, work, self.rank, self.size)

        def total(self, part, round_):
            self.sum = part
            return part

    pairs = [(x[: j % 6 + 1], y[: j % 6 + 1]) for j, (x, y) in enumerate(linear_clients())]
    promised, model = plan(sampler=PoissonSampling(rate=0.8)), start_model()
    sums = []
    for workers in (Part(0, 1), *(Part(rank, 3) for rank in range(3))):
        server = Server(promised, lambda r: r.value, Layout.of(model), MemoryLedger(promised))
        data = ClientData.from_pairs(pairs)
        built = federate(model, data, server, local(), SeededStreams(0), block_size=4)
        built = dataclasses.replace(built, workers=workers)
        built.run_round(server.start(server.layout.read(model)))
        sums.append(workers.sum)
    whole, *parts = sums
    assert min(float(part.norm()) for part in parts) > 0.01
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-6)


def command(verb, what, folder, settings=()):
    sets = [word for setting in settings for word in ("--set", setting)]
    place = ["--out", str(folder)] if verb == "run" else []
    return ["-m", "dpfedls", verb, str(what), *sets, *place, "--json"]


def torchrun(*args):
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, *command(*args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def two_ranks(*args):
    """Exit codes, what was printed and what was said by two processes without torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, *command(*args)],
            env={**os.environ, **where, "WORLD_SIZE": "2", "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    return [rank.returncode for rank in ranks], *map("".join, zip(*said, strict=True))


def same_model(one, other):
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return all(np.abs(a[name] - b[name]).max() <= 1e-6 for name in a)


def alone(folder, settings):
    runs.start(recipes.read("synthetic", settings), folder)
    return folder


@pytest.mark.parametrize(
    "sampler", ['{ kind = "poisson", rate = 0.3 }', '{ kind = "fixed", cohort = 9 }']
)
def test_two_ranks_train_the_model_of_one(sampler, tmp_path):
    settings = [*SMALL, f"plan.sampler={sampler}"]
    process = torchrun("run", "synthetic", tmp_path / "two", settings)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert json.loads(printed)["rounds"] == 8
    assert said.count("round 8/8") == 1
    assert same_model(tmp_path / "two", alone(tmp_path / "one", settings))
    found = verify(tmp_path / "two")
    assert found["valid"], found["problems"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return alone(tmp_path_factory.mktemp("runs") / "whole", LONG)


def ranks_of(process):
    """Process id by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    variables = [Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children]
    return {
        int(next(v for v in found if v.startswith(b"RANK="))[5:]): int(child)
        for child, found in zip(children, variables, strict=True)
    }


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_with_9_stops_the_run_in_words_and_the_run_goes_on(
    victim, uninterrupted, tmp_path
):
    folder = tmp_path / "killed"
    process = torchrun("run", "synthetic", folder, LONG)
    deadline = time.monotonic() + 60
    while len(read_rounds(folder)) < 3 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert printed == ""
    complaints = [line for line in said.splitlines() if line.startswith("dpfedls: ")]
    assert len(complaints) == 1, said
    assert f"rank {victim} of 2 stopped answering after round " in complaints[0]
    assert complaints[0].endswith(f"-m dpfedls resume {folder}")
    kept = len(read_rounds(folder))
    assert 3 <= kept < 150
    if victim == 0:
        assert runs.resume(folder).summary["rounds"] == 150
    else:
        assert two_ranks("resume", folder, folder)[0] == [0, 0]
    assert same_model(folder, uninterrupted)
    found = verify(folder)
    assert found["valid"], found["problems"]
    assert found["spent_epsilon"] == verify(uninterrupted)["spent_epsilon"]


def test_a_budget_that_ends_the_run_ends_it_on_every_rank(tmp_path):
    budget = recipes.read("synthetic", SMALL).plan.epsilon(rounds=3)
    settings = [*SMALL, f"budget={budget}"]
    codes, printed, said = two_ranks("run", "synthetic", tmp_path / "two", settings)
    assert codes == [3, 3]
    assert json.loads(printed)["rounds"] == 3
    assert said.count("privacy budget exhausted") == 1
    assert same_model(tmp_path / "two", alone(tmp_path / "one", settings))


def test_wrong_input_is_said_once_and_ends_every_rank(tmp_path):
    settings = [*SMALL, "mode=deployed"]
    codes, printed, said = two_ranks("run", "synthetic", tmp_path / "none", settings)
    assert codes == [2, 2]
    assert printed == ""
    assert said.count("run it in one process, without torchrun") == said.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_ranks_that_nobody_started_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="start them all with: torchrun"):
        Ranks()
