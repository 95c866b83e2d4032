"""A real federation: SuperLink and three SuperNodes over TLS, with node keys, and bad days."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid
from safetensors.torch import load_file
from test_strategy import app_of, small, strategy_of

from dpfedls.flower.app import write_app
from dpfedls.flower.local import Federation
from dpfedls.privacy.account import read_ledger
from dpfedls.runs import folder as folders
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import Checkpoint
from dpfedls.runs.verify import verify

NODES = 3
SAFETY = 150  # seconds after which a test gives up waiting; nothing is ever measured by it


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("federation")) as running:
        running.start_superlink()
        running.start_supernodes(NODES)
        yield running
    assert not running.left_behind()


def app(place: Path, recipe, *, client: str = "", server: str = "", timeout: float = 60) -> Path:
    """The app that ``deploy init`` writes, with lines added to one side or the other."""
    folder = place / "app"
    settings = {"run-folder": str(place / "r"), "wait-for-nodes": NODES, "round-timeout": timeout}
    write_app(folder, recipe, settings)
    for name, more in (("client", client), ("server", server)):
        with (folder / "federation" / f"{name}.py").open("a") as file:
            file.write(more)
    return folder


def wait_for(what, reached, federation=None):
    end = time.monotonic() + SAFETY
    while not reached():
        words = federation.last_words("run") if federation else ""
        assert time.monotonic() < end, f"waited for {what} in vain\n{words}"
        time.sleep(0.1)


def finish(federation, run):
    wait_for("the end of the run", lambda: run.poll() is not None, federation)
    return (federation.place / "logs" / "run.log").read_text()


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_close(found, expected):
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, atol=1e-6)


def test_a_run_to_the_end_agrees_with_the_simulation(federation, tmp_path):
    """The same seed over TLS and in one process."""
    recipe = small("plan.rounds=2")
    finish(federation, federation.run(app(tmp_path, recipe)))
    runs.start(recipe, tmp_path / "simulated")
    assert_close(weights(tmp_path / "r"), weights(tmp_path / "simulated"))
    assert verify(tmp_path / "r") == verify(tmp_path / "simulated")


DIE = """
import os, signal
from dpfedls.runs.folder import RunFolder

keep = RunFolder.keep

def die_when_paid(self, line, state):
    if state.round == 2 and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)  # paid, and not yet kept
    return keep(self, line, state)

RunFolder.keep = die_when_paid
"""


def test_serverapp_and_superlink_killed_and_restarted(federation, tmp_path):
    """Killed at the worst moment, round 2 is paid and lost; the next run says so and goes on."""
    recipe = small("plan.rounds=3", "mode=deployed")
    marker = tmp_path / "the server has died"
    folder = app(tmp_path, recipe, server=DIE.format(marker=str(marker)))
    federation.run(folder)
    wait_for("the server's death", marker.exists, federation)
    port = int(federation.address.rpartition(":")[2])
    federation.kill("superlink")
    federation.kill("run")
    assert Checkpoint.load(tmp_path / "r").round == 1
    assert len(read_ledger(tmp_path / "r" / "ledger.sqlite")[1]) == 2
    federation.start_superlink(port)
    said = finish(federation, federation.run(folder))
    assert "rounds 2 were paid for and then lost" in said
    assert "privacy budget exhausted" in said  # the lost round was one of the three
    found = verify(tmp_path / "r")
    assert found["valid"], found["problems"]
    assert [line.round for line in folders.read_rounds(tmp_path / "r")] == [1, 2]
    paid = read_ledger(tmp_path / "r" / "ledger.sqlite")[1]
    assert sorted(entry.round for entry in paid) == [0, 1, 1]
    assert found["spent_epsilon"] == pytest.approx(recipe.resolved().plan.epsilon(), rel=1e-9)


MISBEHAVE = """
import io, math, os, time
import numpy as np
from flwr.clientapp import ClientApp

honest, app = app, ClientApp()
app.query()(honest)

@app.train()
def train(message, context):
    reply = honest(message, context)
    node, t = context.node_config["partition-id"], message.content["ask"]["round"]
    array = reply.content["update"]["weight"]
    if (node, t) == (0, 0):
        array.data = np.full(4 * 64, math.nan).tobytes()
    elif (node, t) == (1, 0):
        array.shape = (64, 4)
    elif (node, t) == (0, 1):
        header = {{"descr": "<f8", "fortran_order": False, "shape": (10**12,)}}
        file = io.BytesIO()
        np.lib.format.write_array_header_2_0(file, header)
        array.stype, array.shape, array.data = "numpy.ndarray", (10**12,), file.getvalue()
    elif (node, t) == (0, 2):
        os._exit(1)  # its worker is replaced, asked again, and dies again
    elif (node, t) == (1, 2):
        open({marker!r}, "w").close()
        time.sleep(3600)  # and here the SuperNode is killed
    return reply
"""


def test_a_misbehaving_node_and_one_killed_in_mid_round_count_as_zero(federation, tmp_path):
    """NaN, a wrong shape, a giant header, a death, kill -9; meanwhile a stranger's key is refused.

    Leaves a node broken, so it is the last test: Flower lets a node that was killed in again only
    when its heartbeat has run out.
    """
    recipe = small("plan.rounds=3", "plan.sampler.rate=1.0")
    marker = tmp_path / "round 3 is under way on node 1"
    run = federation.run(
        app(tmp_path, recipe, client=MISBEHAVE.format(marker=str(marker)), timeout=20)
    )
    federation.start_supernode(9, NODES, register=False)
    stranger = federation.processes["node-9"]
    wait_for("the stranger's end", lambda: stranger.poll() is not None)
    assert stranger.returncode != 0
    assert "Failed to activate SuperNode" in federation.last_words("node-9", 40)
    wait_for("round 3 on node 1", marker.exists, federation)
    federation.kill("node-1")
    said = finish(federation, run)
    causes = ("it has NaN", "has shape (64, 4)", "not sent as raw numbers")
    for cause in (*causes, "the node reported error 8", "no reply in time"):
        assert cause in said, said
    assert verify(tmp_path / "r")["valid"]
    assert [line.round for line in folders.read_rounds(tmp_path / "r")] == [1, 2, 3]
    # The same as a federation in one process where those nodes are silent: noise, denominator, sum.
    grid = FakeGrid(app_of(recipe), NODES)
    honest = lambda q, r: r if q.content["ask"]["round"] == 1 else None  # noqa: E731
    grid.spoil = {100: lambda q, r: None, 101: honest}
    silent = strategy_of(recipe, tmp_path / "silent")
    silent.start(grid, timeout=0)
    assert_close(weights(tmp_path / "r"), weights(tmp_path / "silent"))
