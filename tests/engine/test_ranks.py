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
from dpfedls.engine.ranks import Alone, Ranks, share
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.folder import read_rounds
from dpfedls.runs.verify import verify
from dpfedls.server import Server
from federations import federate, linear_clients, local, plan, start_model

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
        engine = dataclasses.replace(built.engine, ranks=workers)
        built = dataclasses.replace(built, engine=engine)
        built.run_round(server.start(server.layout.read(model)))
        sums.append(workers.sum)
    whole, *parts = sums
    assert min(float(part.norm()) for part in parts) > 0.01
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-6)


def command(verb, what, folder, settings=()):
    sets = [word for setting in settings for word in ("--set", setting)]
    place = ["--out", str(folder)] if verb == "run" else []
    return ["-m", "dpfedls", verb, str(what), *sets, *place, "--json"]


def launch(words, **variables):
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def two_ranks(*args):
    """Two processes without torchrun around them: nobody ends one when the other fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    return [launch(command(*args), **where, RANK=str(rank)) for rank in range(2)]


def ended(processes):
    """Exit codes, and what all of them together printed and said."""
    texts = [process.communicate(timeout=120) for process in processes]
    return [process.returncode for process in processes], *map("".join, zip(*texts, strict=True))


def same_model(one, other):
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return all(np.abs(a[name] - b[name]).max() <= 1e-6 for name in a)


def alone(folder, settings):
    runs.start(recipes.read("synthetic", settings), folder)
    return folder


def test_two_ranks_train_the_model_of_one(tmp_path):
    """With cohorts of a fixed size; the tests below do the same with Poisson sampling."""
    settings = [*SMALL, 'plan.sampler={ kind = "fixed", cohort = 9 }']
    words = command("run", "synthetic", tmp_path / "two", settings)
    codes, printed, said = ended([launch([*TORCHRUN, *words])])
    assert codes == [0], said
    assert json.loads(printed)["rounds"] == 8
    assert said.count("round 8/8") == 1
    assert same_model(tmp_path / "two", alone(tmp_path / "one", settings))
    found = verify(tmp_path / "two")
    assert found["valid"], found["problems"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return alone(tmp_path_factory.mktemp("runs") / "whole", LONG)


def wait_for_round_three(folder):
    deadline = time.monotonic() + 60
    while len(read_rounds(folder)) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)


def check_complaint(said, victim, folder):
    complaints = [line for line in said.splitlines() if line.startswith("dpfedls: ")]
    assert len(complaints) == 1, said
    assert f"rank {victim} of 2 stopped answering after round " in complaints[0]
    assert complaints[0].endswith(f"-m dpfedls resume {folder}")
    assert 3 <= len(read_rounds(folder)) < 150


def check_nothing_lost(folder, uninterrupted):
    assert same_model(folder, uninterrupted)
    found = verify(folder)
    assert found["valid"], found["problems"]
    assert found["spent_epsilon"] == verify(uninterrupted)["spent_epsilon"]


def pid_of_rank(rank, process):
    """Among the children of torchrun."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    variable = f"RANK={rank}".encode()
    (found,) = (
        c for c in children if variable in Path(f"/proc/{c}/environ").read_bytes().split(b"\0")
    )
    return int(found)


def test_a_rank_killed_under_torchrun_stops_the_run_and_two_ranks_go_on(uninterrupted, tmp_path):
    folder = tmp_path / "killed"
    process = launch([*TORCHRUN, *command("run", "synthetic", folder, LONG)])
    wait_for_round_three(folder)
    os.kill(pid_of_rank(1, process), signal.SIGKILL)
    codes, printed, said = ended([process])
    assert (codes, printed) == ([1], "")
    check_complaint(said, 1, folder)
    assert ended(two_ranks("resume", folder, folder))[0] == [0, 0]
    check_nothing_lost(folder, uninterrupted)


def test_the_leading_rank_killed_is_missed_too_and_one_process_goes_on(uninterrupted, tmp_path):
    folder = tmp_path / "killed"
    leader, helper = two_ranks("run", "synthetic", folder, LONG)
    wait_for_round_three(folder)
    leader.kill()
    codes, _, said = ended([leader, helper])
    assert codes == [-signal.SIGKILL, 1]
    check_complaint(said, 0, folder)
    runs.resume(folder)
    check_nothing_lost(folder, uninterrupted)


def test_a_budget_that_ends_the_run_ends_it_on_every_rank(tmp_path):
    budget = recipes.read("synthetic", SMALL).plan.epsilon(rounds=3)
    settings = [*SMALL, f"budget={budget}"]
    codes, printed, said = ended(two_ranks("run", "synthetic", tmp_path / "two", settings))
    assert codes == [3, 3]
    assert json.loads(printed)["rounds"] == 3
    assert said.count("privacy budget exhausted") == 1
    assert same_model(tmp_path / "two", alone(tmp_path / "one", settings))


def test_wrong_input_is_said_once_and_ends_every_rank(tmp_path):
    settings = [*SMALL, "mode=deployed"]
    codes, printed, said = ended(two_ranks("run", "synthetic", tmp_path / "none", settings))
    assert codes == [2, 2]
    assert printed == ""
    assert said.count("run it in one process, without torchrun") == said.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_ranks_that_nobody_started_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match="start them all with: torchrun"):
        Ranks()
