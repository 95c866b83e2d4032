"""A worker that stays: one process that keeps a run's app, data and model from round to round.

It is forked by its node, which has imported torch already, and asked over a pipe that nobody else
can open. It belongs to one run of one app: a task of another run, or of other code, ends it and
starts a new one. One that dies is replaced and asked again; one that dies twice on the same
message costs the node that message and nothing else.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Context, Error, Message
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext  # pyright: ignore[reportAttributeAccessIssue]
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run

from dpfedls.flower.orphans import die_with_parent

log = logging.getLogger("dpfedls")
FORK = multiprocessing.get_context("fork")
_BEAT = 1.0  # seconds between two signs that a message is still being worked on
_TRIES = 2


class Stopped(Exception):
    """Nobody waits for the answer any more."""


class Resident:
    """The worker of the run that was asked for last; at most one, as Flower asks one by one."""

    def __init__(self) -> None:
        self._run: tuple[int, str] | None = None

    def answer(
        self, message: Message, context: Context, run: Run, fab: Fab, beat: Callable[[], None]
    ) -> tuple[Message, Context]:
        """What the run's app replies. ``beat`` is called while it works; its error ends the work.

        Guarantees: a message has one reply, whatever happens to the worker.
        """
        for _ in range(_TRIES):
            self._be_of(run, fab)
            try:
                return self._ask(message, context, beat)
            except (EOFError, ConnectionError):
                log.warning("the worker died and is replaced")
                self.end()
            except BaseException:
                self.end()  # what it answers later is the answer to nothing
                raise
        error = Error(ErrorCode.CLIENT_APP_CRASHED, "the worker died; the node's own log says more")
        return Message(error, reply_to=message), context

    def end(self) -> None:
        """End the worker, whatever it does."""
        if self._run is not None:
            self._worker.kill()
            self._worker.join()
            self._pipe.close()
            self._run = None

    def _be_of(self, run: Run, fab: Fab) -> None:
        if self._run == (run.run_id, fab.hash_str) and self._worker.is_alive():
            return
        self.end()
        ours, theirs = FORK.Pipe()
        self._pipe: Any = ours  # typeshed knows another class
        arguments = (self._pipe, theirs, os.getpid(), run, fab)
        self._worker = FORK.Process(target=_work, args=arguments, name="worker")
        self._worker.start()
        theirs.close()
        self._run = (run.run_id, fab.hash_str)

    def _ask(
        self, message: Message, context: Context, beat: Callable[[], None]
    ) -> tuple[Message, Context]:
        _send(self._pipe, message, context)
        while not self._pipe.poll(_BEAT):
            if not self._worker.is_alive():  # a process of its own may hold the pipe open
                raise EOFError
            beat()
        return _receive(self._pipe)


def _work(node: Connection, pipe: Connection, parent: int, run: Run, fab: Fab) -> None:
    """The worker's life: load once, then answer until the node is gone."""
    die_with_parent(parent)
    node.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the node, which ends us
    app = None
    while True:
        message, context = _receive(pipe)
        try:
            app = app or _load(run, fab)
            reply = app(message=message, context=context)
        except Exception:
            # Flower would send the exception's text, and text made from data is data.
            log.exception("this node could not answer")
            code = (
                ErrorCode.CLIENT_APP_RAISED_EXCEPTION
                if app
                else ErrorCode.LOAD_CLIENT_APP_EXCEPTION
            )
            reply = Message(Error(code, "the node's own log says why"), reply_to=message)
        _send(pipe, reply, context)


def _load(run: Run, fab: Fab) -> ClientApp:
    install_from_fab(fab.content, skip_prompt=True)
    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(run.fab_id, run.fab_version, fab.hash_str)


def _send(pipe: Connection, message: Message, context: Context) -> None:
    """In the pieces that Flower sends it in, so that no length has another limit here."""
    parts = get_all_nested_objects(message)
    pipe.send_bytes(len(parts).to_bytes(8, "little"))
    for name, part in parts.items():  # the message itself comes last
        pipe.send_bytes(name.encode())
        pipe.send_bytes(part.deflate())
    pipe.send_bytes(context_to_proto(context).SerializeToString())


def _receive(pipe: Connection) -> tuple[Message, Context]:
    parts, name = {}, ""
    for _ in range(int.from_bytes(pipe.recv_bytes(), "little")):
        name = pipe.recv_bytes().decode()
        parts[name] = pipe.recv_bytes()
    message = inflate_object_from_contents(name, parts)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = name
    return message, context_from_proto(ProtoContext.FromString(pipe.recv_bytes()))
