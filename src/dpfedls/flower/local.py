"""``dpfedls deploy local``: a whole federation on this machine, over TLS, with node keys."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from cryptography.hazmat.primitives import serialization
from torch import nn

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.flower import require_flower
from dpfedls.flower.agreement import write_agreement
from dpfedls.flower.app import read_app_recipe, write_app
from dpfedls.flower.credentials import write_certificates, write_node_key
from dpfedls.flower.orphans import MARK, marked, new_mark, sweep, sweep_abandoned, watch_over
from dpfedls.flower.promise import NOISE_ALONE
from dpfedls.randomness import SeededStreams, SystemStreams
from dpfedls.runs.folder import is_free, read_recipe, read_rounds
from dpfedls.runs.load import load
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import Watch, summary
from dpfedls.runs.verify import read_statement, verify
from dpfedls.tasks.task import make_task

log = logging.getLogger("dpfedls")
_KEEPS = (sys.executable, "-m", "dpfedls", "deploy", "node")
_NODE = _KEEPS if sys.platform == "linux" else ("flower-supernode",)
_PATIENCE = 120.0  # seconds for a process to come up on a busy machine


class FederationFailed(RuntimeError):
    """A process of the federation ended, or never came up. Exit code 1."""


@dataclass(frozen=True)
class Outcome:
    """What a federation left in its run folder; the weights go into your own module by ``load``."""

    folder: Path
    recipe: Recipe
    exhausted: BudgetExhausted | None  # the budget ended the run early

    def summary(self) -> dict[str, Any]:
        """What ``dpfedls deploy local`` answers."""
        rounds, facts = read_rounds(self.folder), read_statement(self.folder)
        found = summary(self.folder, self.recipe, rounds, facts)
        return found | {"engine": "chosen by each node"}

    def load(self, model: nn.Module) -> nn.Module:
        """The trained weights in a copy of your module."""
        return load(self.folder, model)


def deploy_local(
    recipe: Recipe, folder: Path, nodes: int, watch: Watch = lambda _: None
) -> Outcome:
    """Run a recipe on its own data, or the rest of its run, on ``nodes`` SuperNodes."""
    # Whatever is wrong with the task is said before anything starts.
    make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    with workplace() as place:
        roster = {"roster": str(_deal(recipe.plan.num_clients, nodes, place))}
        settings = _settings(folder, nodes) | {"round-timeout": 300.0} | roster
        write_app(place / "app", recipe, settings)
        return _run_app(place / "app", recipe, folder, nodes, watch, place)


def deploy_app(app: Path, folder: Path, nodes: int, watch: Watch = lambda _: None) -> Outcome:
    """Run an app as it stands, with its own recipe, loader and model, or the rest of its run."""
    with workplace() as place:
        return _run_app(app, read_app_recipe(app), folder, nodes, watch, place)


def _deal(people: int, nodes: int, place: Path) -> Path:
    """Agree who holds whom, as the template's loader deals them out: by keys, made here."""
    keys = [write_node_key(place / f"node-{i}.key") for i in range(nodes)]
    path = place / "roster.toml"
    write_agreement(path, {key: range(i, people, nodes) for i, key in enumerate(keys)})
    return path


def _settings(folder: Path, nodes: int) -> dict[str, str | int | float]:
    """What replaces an app's own [tool.flwr.app.config]: where the run is kept, and by whom."""
    return {"run-folder": str(folder.resolve()), "wait-for-nodes": nodes}


def _run_app(
    app: Path,
    recipe: Recipe,
    folder: Path,
    nodes: int,
    watch: Watch,
    place: Path,
) -> Outcome:
    require_flower()
    if nodes < 1:
        raise InputError(f"--nodes must be at least 1, got {nodes}; 4 makes a small federation")
    if recipe.mode == "deployed":
        SystemStreams()
    is_free(folder)  # a file in its place is said before anything starts
    with Federation(place) as federation:
        federation.start_superlink()
        settings = _settings(folder, nodes)
        config = [f"{k}={msgspec.json.encode(v).decode()}" for k, v in settings.items()]
        run = federation.run(app.resolve(), *config)  # it waits for its nodes
        federation.start_supernodes(nodes)
        _follow(folder, run, federation, watch)
        return _outcome(folder, federation)


def _follow(
    folder: Path, run: subprocess.Popen[bytes], federation: Federation, watch: Watch
) -> None:
    """Report each released round until Flower's run is over, and those in which nobody counted."""
    shown, said, over = len(read_rounds(folder)), 0, False
    while not over:
        over = run.poll() is not None
        federation.check_superlink()
        for line in read_rounds(folder)[shown:]:
            shown += 1
            watch(line)
        alone = noise_alone(federation.place)
        for warning in alone[said:]:
            log.warning("%s", warning)
        said = len(alone)
        time.sleep(0.2)


def noise_alone(place: Path) -> list[str]:
    """What the server said of rounds in which none of the nodes counted."""
    return [line for line in _log_lines(place, "run") if NOISE_ALONE in line]


def _log_lines(place: Path, name: str) -> list[str]:
    path = place / "logs" / f"{name}.log"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return text.splitlines()


def _outcome(folder: Path, federation: Federation) -> Outcome:
    if is_free(folder):
        raise FederationFailed(f"the server could not start:\n{federation.last_words('run')}")
    recipe, found = read_recipe(folder), verify(folder)
    if not found["valid"]:
        raise FederationFailed(
            f"the run ended before it was complete ({found['problems'][0]}); the server said:\n"
            f"{federation.last_words('run')}"
        )
    rounds, exhausted = read_rounds(folder), None
    if len(rounds) < recipe.plan.rounds:
        exhausted = BudgetExhausted(
            f"privacy budget exhausted: ε = {found['spent_epsilon']:.4g} was spent, and "
            f"{len(rounds)} of {recipe.plan.rounds} rounds were released; the last model is valid"
        )
    return Outcome(folder, recipe, exhausted)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for keys, Flower's own files and logs; kept only if something fails.

    Of a run that ended, but in which nobody counted for a while, the logs are kept.
    """
    place = Path(tempfile.mkdtemp(prefix="dpfedls-federation-"))
    try:
        yield place
    except FederationFailed as error:
        raise FederationFailed(f"{error}\n(logs are in {place})") from error
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    if noise_alone(place):
        logs = Path(tempfile.mkdtemp(prefix="dpfedls-logs-"))
        shutil.copytree(place / "logs", logs, dirs_exist_ok=True)
        log.warning("why the nodes could not train is said in their logs: %s", logs)
    shutil.rmtree(place, ignore_errors=True)


class Federation:
    """A SuperLink and SuperNodes on loopback, as processes that end when this does."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.address = ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._mark = new_mark()
        self._registered: set[str] = set()
        (place / "logs").mkdir()
        write_certificates(place)

    def __enter__(self) -> Federation:
        self._old = signal.signal(signal.SIGTERM, _exit) if _is_main_thread() else None
        sweep_abandoned()
        self._watchman = watch_over(self._mark)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._watchman.communicate()  # the end of its input is its sign to look once more
        if self._old is not None:
            signal.signal(signal.SIGTERM, self._old)

    def start_superlink(self, port: int | None = None) -> None:
        """Start the SuperLink; its database is a file, so that it survives being killed."""
        where = self._start(
            "superlink",
            lambda port: [
                *("flower-superlink", "--host", "127.0.0.1", "--port", str(port)),
                *("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem"),
                *("--ssl-keyfile", "server.key", "--enable-supernode-auth"),
                *("--disable-runtime-dependency-installation", "--database", "superlink.db"),
            ],
            port,
        )
        self.address = f"127.0.0.1:{where}"
        config = f'[superlink.local]\naddress = "{self.address}"\nroot-certificates = "{{}}"\n'
        home = self.place / "home-superlink"
        (home / "config.toml").write_text(config.format(self.place / "ca.crt"), encoding="utf-8")

    def start_supernodes(self, nodes: int) -> None:
        """All of them at once: most of it is importing."""
        with ThreadPoolExecutor(nodes) as pool:
            list(pool.map(lambda number: self.start_supernode(number, nodes), range(nodes)))

    def start_supernode(self, number: int, nodes: int, *, register: bool = True) -> None:
        """Make a node's key, register it with the SuperLink and start the node."""
        name = f"node-{number}"
        key = self.place / f"{name}.key"
        if not key.exists():
            write_node_key(key)
        if register and name not in self._registered:
            self._register(key.with_suffix(".pub").read_text(encoding="utf-8"))
            self._registered.add(name)
        self._start(
            name,
            lambda port: [
                *(*_NODE, "--superlink", self.address),
                *("--root-certificates", "ca.crt", "--auth-supernode-private-key", key.name),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--node-config", f"partition-id={number} num-partitions={nodes}"),
            ],
        )

    def run(self, app: Path, *config: str) -> subprocess.Popen[bytes]:
        """Start a run of an app; the process ends when the run does."""
        options = [part for item in config for part in ("--run-config", item)]
        command = ["flwr", "run", str(app), "local", "--stream", *options]
        return self._spawn("run", command, "superlink")

    def _register(self, key: str) -> None:
        """What ``flwr supernode register`` does, without a Python of its own for every node."""
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest

        public = serialization.load_ssh_public_key(key.encode())
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        trusted = ssl.create_default_context(cafile=self.place / "ca.crt")
        done = httpx.post(
            f"https://{self.address}/v1/control/register-node",
            content=RegisterNodeRequest(public_key=public.public_bytes(*form)).SerializeToString(),
            headers={"content-type": "application/protobuf", "accept": "application/protobuf"},
            verify=trusted,
            trust_env=False,  # no proxy on the way to this machine
            timeout=_PATIENCE,
        )
        if done.status_code != 200:
            raise FederationFailed(f"a node's key was not registered: {done.text:.200}")

    def check_superlink(self) -> None:
        """Raise if the SuperLink has gone."""
        if self.processes["superlink"].poll() is not None:
            raise FederationFailed(f"the SuperLink has ended:\n{self.last_words('superlink')}")

    def last_words(self, name: str, lines: int = 15) -> str:
        """The end of a process's log."""
        return "\n".join(_log_lines(self.place, name)[-lines:])

    def kill(self, name: str) -> None:
        """End a process and whatever it started at once, as a power cut would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        sweep(self._named(name))  # what it started, in sessions of its own too

    def stop(self) -> None:
        """End everything: nodes first, politely, then by force, then whatever was left behind."""
        for process in reversed(self.processes.values()):
            process.terminate()
        deadline = time.monotonic() + 2
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        sweep(self._mark)

    def left_behind(self, name: str = "") -> list[int]:
        """Processes of this federation, or of one of its parts, that still run."""
        return list(marked(self._named(name)))

    def _named(self, name: str) -> str:
        return f"{self._mark}{name and f' {name}'}"

    def _start(
        self, name: str, command: Callable[[int], Sequence[str]], port: int | None = None
    ) -> int:
        """Start a server on a free port; another program may take the port first, so try again."""
        for _ in range(3):
            chosen = port or _free_port()
            process = self._spawn(name, command(chosen), name)
            if _answers(chosen, process):
                return chosen
        raise FederationFailed(f"{name} did not start:\n{self.last_words(name)}")

    def _spawn(self, name: str, command: Sequence[str], home: str) -> subprocess.Popen[bytes]:
        with (self.place / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [_find(command[0]), *command[1:]],
                env=self._environment(home, name),
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
            )
        self.processes[name] = process
        return process

    def _environment(self, home: str, name: str = "flwr") -> dict[str, str]:
        """Flower's files stay in our folder, one place a machine that there would be."""
        where = self.place / f"home-{home}"
        where.mkdir(exist_ok=True)
        return os.environ | {
            "FLWR_HOME": str(where),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",  # all nodes share this machine
            "PATH": os.pathsep.join([str(_scripts()), os.environ.get("PATH", "")]),
            "NO_PROXY": "127.0.0.1,localhost",
            MARK: self._named(name),
        }


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has come to listen on the port, rather than ended."""
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return process.poll() is None
        time.sleep(0.1)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _scripts() -> Path:
    return Path(sys.executable).parent


def _find(command: str) -> str:
    found = shutil.which(command, path=f"{_scripts()}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise InputError(f"{command} is not there; run: pip install 'dpfedls[flower]'")
    return found


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _exit(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)
