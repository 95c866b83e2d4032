"""The worker that a node keeps: loaded once, replaced when it dies, of one run and one app."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from dpfedls import InputError
from dpfedls.flower.app import write_app
from dpfedls.flower.node import run_node
from dpfedls.flower.resident import FORK, Resident, Stopped
from dpfedls.runs import recipes

APP = """
import os
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
with open({loaded!r}, "a") as file:
    file.write("loaded ")

@app.train()
def train(message, context):
    asked = message.content["ask"]["do"]
    if asked == "die" or asked == "die once" and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        os._exit(1)
    if asked == "fail":
        raise ValueError("a patient's name")
    if asked == "sleep":
        import time
        time.sleep(1000)
    return Message(RecordDict({{"done": ConfigRecord({{"pid": os.getpid()}})}}), reply_to=message)
"""


class Node:
    """What stands in for Flower's SuperNode: messages, a context, a run and its app."""

    def __init__(self, place: Path) -> None:
        self.loaded = place / "loaded"
        write_app(place / "app", recipes.read("synthetic"), {})
        code = APP.format(loaded=str(self.loaded), marker=str(place / "died"))
        (place / "app" / "federation" / "client.py").write_text(code)
        self.build(place)
        self.run = Run.create_empty(7)
        self.run.fab_id, self.run.fab_version = "dpfedls/federation", "1.0.0"
        self.resident = Resident()

    def build(self, place: Path, code: str = "") -> None:
        with (place / "app" / "federation" / "client.py").open("a") as file:
            file.write(code)
        content = build_fab_from_disk(place / "app")
        self.fab = Fab(hashlib.sha256(content).hexdigest(), content, {})

    def ask(self, what: str = "train", beat=lambda: None) -> Message:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 7
        content = RecordDict({"ask": ConfigRecord({"do": what})})
        message = Message(content, dst_node_id=3, message_type="train")
        message.metadata.__dict__["_message_id"] = message.object_id
        context = Context(7, 3, {}, RecordDict(), {})
        reply, _ = self.resident.answer(message, context, self.run, self.fab, beat)
        assert reply.metadata.reply_to_message_id == message.metadata.message_id
        return reply

    def pid(self) -> int:
        return self.ask().content["done"]["pid"]


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    made = Node(tmp_path)
    yield made
    made.resident.end()


def is_gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_until(reached) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_the_app_is_loaded_once_and_a_killed_worker_is_replaced(node):
    first = node.pid()
    assert first != os.getpid()
    assert node.pid() == first
    assert node.loaded.read_text() == "loaded "
    os.kill(first, signal.SIGKILL)
    assert node.pid() != first
    assert node.loaded.read_text() == "loaded loaded "


def test_one_that_dies_at_work_is_asked_again_and_dying_twice_costs_one_message(node):
    assert node.ask("die once").has_content()
    reply = node.ask("die")
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert node.ask().has_content()


def test_what_an_exception_says_stays_on_the_node(node):
    reply = node.ask("fail")
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert "patient" not in reply.error.reason
    assert node.loaded.read_text() == "loaded "
    assert node.ask().has_content()


def test_another_run_and_other_code_have_a_worker_of_their_own(node, tmp_path):
    pids = [node.pid()]
    node.run.run_id = 8
    pids.append(node.pid())
    node.build(tmp_path, "# other code")
    pids.append(node.pid())
    assert len(set(pids)) == 3
    assert is_gone(pids[0])
    assert is_gone(pids[1])


def test_a_stopped_run_ends_the_work(node):
    known = node.pid()

    def stop():
        raise Stopped

    with pytest.raises(Stopped):
        node.ask("sleep", beat=stop)
    assert is_gone(known)


def test_a_worker_ends_with_its_node_even_in_the_middle_of_work(node):
    heard, said = FORK.Pipe()

    def be_owner():
        said.send(node.pid())
        node.ask("sleep")

    owner = FORK.Process(target=be_owner)
    owner.start()
    said.close()  # so that an owner who dies before it speaks ends the wait
    worker = heard.recv()
    assert not is_gone(worker)
    owner.kill()
    owner.join()
    wait_until(lambda: is_gone(worker))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "unrecognized arguments: --bogus; the options are those of"),
        (["--root-certificates", "nowhere.crt"], "nowhere.crt is not a file"),
    ],
)
def test_wrong_options_of_a_node_are_told_before_anything_starts(arguments, message):
    with pytest.raises(InputError, match=message):
        run_node(arguments)
