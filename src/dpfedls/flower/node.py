"""A node: Flower's SuperNode, and beside it a worker that keeps the app and its data loaded.

A SuperNode by itself starts a fresh Python for every message, which imports torch and loads the
data again. This process imports them once and forks the SuperNode, which then leaves its tasks to
others (``--isolation process``); it fetches them and hands them to the worker of their run.

    node ──┬── SuperNode    talks to the SuperLink; its end ends the node
           └── worker       one run's app and data; it is replaced when it ends

Both children end with this process, by whatever means it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,  # pyright: ignore[reportAttributeAccessIssue]
    SendTaskHeartbeatRequest,  # pyright: ignore[reportAttributeAccessIssue]
)
from flwr.supercore.address import resolve_bind_address
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode, flower_supernode
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

import dpfedls.flower.client  # noqa: F401  what every app imports, once for all workers
from dpfedls.errors import InputError
from dpfedls.flower.orphans import die_with_parent
from dpfedls.flower.resident import FORK, Resident, Stopped

log = logging.getLogger("dpfedls")
_SOON = 0.2  # seconds: how often a waiting SuperNode looks, at first
_IDLE = 900.0  # seconds after which data of a run that asks for nothing leaves the memory


def run_node(arguments: list[str]) -> int:
    """Be a node until its SuperNode ends; the arguments are those of flower-supernode."""
    if sys.platform != "linux":
        raise InputError(
            "a node that keeps an app loaded needs Linux, whose kernel ends its processes with it; "
            "start flower-supernode with the same options instead"
        )
    asked = _parsed(arguments)
    if asked.runtime_dependency_install:
        raise InputError(
            "--allow-runtime-dependency-installation is not for nodes that keep an app loaded; "
            "install what the app needs on this machine, or start flower-supernode instead"
        )
    wake, theirs = os.pipe()
    supernode = FORK.Process(target=_be_supernode, args=(arguments, theirs, os.getpid()))
    supernode.start()
    os.close(theirs)  # so that the SuperNode's end is the end of the pipe
    for sign in (signal.SIGINT, signal.SIGTERM):  # it says goodbye to the SuperLink, then ends
        signal.signal(sign, lambda *_: supernode.terminate())
    certificate = Path(asked.ssl_ca_certfile).read_bytes() if asked.ssl_ca_certfile else None
    runtime = _Runtime(resolve_bind_address(f"{asked.host}:{asked.port}"), certificate)
    resident = Resident()
    try:
        while _has_work(wake, resident):
            _do_next(runtime, resident)
    finally:
        resident.end()
        supernode.terminate()
        supernode.join()
    return abs(supernode.exitcode or 0)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """Flower's own options; what is wrong with them in one line."""

    def refuse(message: str) -> NoReturn:
        raise InputError(f"{message}; the options are those of: flower-supernode --help")

    parser = _parse_args_run_supernode()
    parser.error = refuse
    asked = parser.parse_args(arguments)
    if asked.root_certificates and not Path(asked.root_certificates).is_file():
        raise InputError(
            f"--root-certificates {asked.root_certificates} is not a file; without it the server "
            "cannot be told from another: give the ca.crt that the server's operator handed out"
        )
    return asked


def _has_work(wake: int, resident: Resident) -> bool:
    """Wait for the SuperNode to have a task; False once it is gone."""
    if not select.select([wake], [], [], _IDLE)[0]:
        resident.end()
        select.select([wake], [], [])
    return bool(os.read(wake, 4096))


class _Runtime:
    """The SuperNode's own interface for those who run its tasks."""

    def __init__(self, address: str, certificate: bytes | None) -> None:
        self._address, self._certificate = address, certificate
        self.anybody = self.holding()

    def holding(self, token: str = "") -> RuntimeHttpClient:
        """A client that may work on the task of a token."""
        said = [RuntimeTokenHttpInterceptor(token)] if token else []
        return RuntimeHttpClient.from_server_address(
            self._address,
            self._certificate is None,
            self._certificate,
            [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *said],
        )


def _do_next(runtime: _Runtime, resident: Resident) -> None:
    """Do the next task, if there is one. What goes wrong costs that task alone."""
    client = None
    try:
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        if token := runtime.anybody.AcquireTask(wanted).token:
            client = runtime.holding(token)
            _do(client, resident)
    except Stopped:
        log.info("the run was stopped; its task is dropped")
    except Exception:
        log.exception("a task could not be done")
    finally:
        if client is not None:
            client.close()


def _do(client: RuntimeHttpClient, resident: Resident) -> None:
    """Fetch a task's message, have it answered, hand the reply over."""

    def beat() -> None:
        if not client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
            raise Stopped

    message, context, run, fab = pull_task_input(client)
    reply, context = resident.answer(message, context, run, fab, beat)
    push_message(client, reply, context)
    status = SubStatus.FAILED if reply.has_error() else SubStatus.COMPLETED
    push_task_output(client, context, status, "")


def _be_supernode(arguments: list[str], wake: int, parent: int) -> None:
    die_with_parent(parent)
    os.set_blocking(wake, False)
    start_client_internal.time = SimpleNamespace(sleep=_Waits(wake).sleep)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process"]
    flower_supernode()


class _Waits:
    """How the SuperNode waits. Flower has no setting for it.

    It waits half a second at a time for an app's reply: that is when an app has to be called. It
    waits three seconds between two looks for messages: less after a reply, since the next round
    comes soon, and then longer and longer, so that a long wait costs the SuperLink no more.
    """

    def __init__(self, wake: int) -> None:
        self._wake, self._pause = wake, _SOON

    def sleep(self, seconds: float) -> None:
        if seconds < 1:
            self._pause = _SOON
            with contextlib.suppress(BlockingIOError):  # called often enough
                os.write(self._wake, b".")
            time.sleep(_SOON)
        else:
            time.sleep(min(self._pause, seconds))
            self._pause *= 1.5
