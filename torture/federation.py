"""A real federation whose server and nodes are killed, and whose nodes lie, dawdle, die and flood.

SuperLink, SuperNodes and ServerApp are the product's own, as ``deploy local`` starts them. Server
and nodes are tortured in two federations at the same time, one a core.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedls.flower.agreement import write_agreement
from dpfedls.flower.app import write_app
from dpfedls.flower.local import Federation
from dpfedls.flower.orphans import marked
from dpfedls.runs import recipes
from torture import folders, invariants
from torture.hostile_nodes import CLIENT, NODES, SERVER, STRANGER, acts, claims, held
from torture.outcome import Outcome

_ROOT = Path(__file__).parents[1]
_LIMIT = 900.0  # seconds after which a run counts as hanging
_FORK = multiprocessing.get_context("fork")
_WATCH = f"""
import sys
sys.path.append({str(_ROOT)!r})
from torture.watched import watch_noise
watch_noise(Path({{noise!r}}))
"""


def federation(cases: int, seed: int) -> Outcome:
    """Two fifths kill the server, two fifths nodes, the rest are acts of hostile nodes."""
    kills, wrongs = max(1, round(0.4 * cases)), max(1, round(0.2 * cases))
    parts = [
        _beside(lambda: _servers(kills, seed)),
        _beside(lambda: _both(_nodes(kills, seed), _hostile(wrongs))),
    ]
    found = Outcome()
    for part in parts:
        found = _both(found, part())
    found.note = f"real: {kills} kills of the server, {kills} of nodes and workers, "
    found.note += f"{found.cases - 2 * kills} acts of a hostile node"
    return found


def _both(one: Outcome, other: Outcome) -> Outcome:
    return Outcome(one.cases + other.cases, one.violations + other.violations)


def _beside(work: Callable[[], Outcome]) -> Callable[[], Outcome]:
    """Begin in a process of its own; the answer waits for its end."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=lambda: theirs.send_bytes(json.dumps(vars(work())).encode()))
    process.start()
    theirs.close()

    def answer() -> Outcome:
        try:
            found = Outcome(**json.loads(ours.recv_bytes()))
        except EOFError:
            found = Outcome(violations=["a federation could not be tried; see above"])
        process.join()
        return found

    return answer


# ── The server ──────────────────────────────────────────────────────────────────────────────────


def _servers(cases: int, seed: int) -> Outcome:
    """Kill the ServerApp, and now and then the SuperLink too; start again until a run is done."""
    found, rng = Outcome(), random.Random(seed)
    with _running(2) as federation:
        while found.cases < cases:
            run = _Run(federation, 2, rounds=6)
            while found.cases < cases and not _ends_before_kill(run, rng):
                _kill(*_serverapps(federation))
                federation.kill("run")
                if rng.random() < 0.1:
                    port = int(federation.address.rpartition(":")[2])
                    federation.kill("superlink")
                    federation.start_superlink(port)
                case = f"server killed after round {folders.released(run.folder)}"
                found.add(case, run.problems())
            run.finish()
            run.end(found, "killed servers")
    return found


def _ends_before_kill(run: _Run, rng: random.Random) -> bool:
    """Start, and wait for a moment while it starts, or soon after a round's release."""
    released, more = folders.released(run.folder), rng.choice((0, 1))
    run.start()
    _wait(lambda: _serverapps(run.federation) or run.is_over)
    run.wait_for(released + more)
    time.sleep(rng.uniform(0, 1 if more else 8))
    return run.is_over


def _serverapps(federation: Federation) -> list[int]:
    """The processes that hold a ledger."""
    return [pid for pid in federation.left_behind("superlink") if b"flwr-serverapp" in _words(pid)]


# ── Nodes ───────────────────────────────────────────────────────────────────────────────────────


def _nodes(cases: int, seed: int) -> Outcome:
    """Workers at random moments; a quarter of the kills is of a whole node or of its SuperNode."""
    found, rng = Outcome(), random.Random(seed + 1)
    with _running(2) as federation:
        while found.cases < (3 * cases + 3) // 4:
            run = _Run(federation, 2, rounds=12)
            run.start()
            run.wait_for(1)
            while not run.is_over:
                worker = _children(federation.processes[f"node-{rng.randrange(2)}"].pid)[1:]
                if worker and found.cases < cases:
                    _kill(*worker)
                    found.add("worker killed", [])  # the folder is looked at when the run is over
                time.sleep(rng.uniform(0, 2))
            run.end(found, "killed workers", rounds=12)
    while found.cases < cases:
        _lose_nodes(found, min(4, cases - found.cases), rng)
    return found


def _lose_nodes(found: Outcome, victims: int, rng: random.Random) -> None:
    """One node after another is gone for good; the rounds go on without them."""
    with _running(victims + 1) as federation:
        run = _Run(federation, victims + 1, rounds=victims + 2)
        run.start()
        for victim in range(1, victims + 1):
            run.wait_for(victim)
            time.sleep(rng.uniform(0, 1))
            what = rng.choice(("node", "SuperNode"))
            found.add(f"{what} killed", _lost(federation, victim, what))
        run.wait_for(victims + 3)  # to the end
        run.end(found, "lost nodes", rounds=victims + 2)


def _lost(federation: Federation, victim: int, what: str) -> list[str]:
    node = federation.processes[f"node-{victim}"]
    _kill(node.pid if what == "node" else _children(node.pid)[0])
    node.wait()
    left = federation.left_behind
    if _wait(lambda: not left(f"node-{victim}"), limit=20):
        return []
    return [f"processes {left(f'node-{victim}')} outlive it"]


def _hostile(cases: int) -> Outcome:
    """One node does its worst whenever it is asked, another is in no roster; two are honest."""
    found, rounds = Outcome(), cases + cases // 5 + 1  # now and then none of its people is drawn
    with _running(NODES) as federation:
        keys = [(federation.place / f"node-{i}.pub").read_text("utf-8") for i in range(STRANGER)]
        roster = federation.place / "roster.toml"
        write_agreement(roster, {key: held(node) for node, key in enumerate(keys)})
        run = _Run(federation, NODES, rounds, CLIENT, SERVER, roster=str(roster))
        run.start()
        run.wait_for(rounds + 1)  # to the end
        for act, problems in [*acts(run.place), *claims(run.place)]:
            found.add(f"hostile node: {act}", problems)
        run.end(found, "hostile nodes", rounds=rounds)
    return found


# ── Runs, processes, time ───────────────────────────────────────────────────────────────────────


class _Run:
    """A run folder under torture, and the app that fills it."""

    def __init__(
        self,
        federation: Federation,
        nodes: int,
        rounds: int,
        client: str = "",
        server: str = "",
        roster: str = "",
    ) -> None:
        self.federation = federation
        self.place = Path(tempfile.mkdtemp(dir=federation.place))
        self.folder, self.noise = self.place / "run", self.place / "noise"
        self.app, self._rounds = self.place / "app", rounds
        recipe = recipes.read("synthetic", folders.settings("deployed", rounds))
        settings = {"run-folder": str(self.folder), "wait-for-nodes": nodes, "round-timeout": 5.0}
        write_app(self.app, recipe, settings | {"roster": roster})
        server = _WATCH.format(noise=str(self.noise)) + server
        for side, more in (("client", client), ("server", server)):
            with (self.app / "federation" / f"{side}.py").open("a", encoding="utf-8") as file:
                file.write(more.replace("PLACE", repr(str(self.place))))

    def start(self) -> None:
        """Begin, or go on."""
        self._process = self.federation.run(self.app)

    @property
    def is_over(self) -> bool:
        """Whether Flower has ended it, and the server has left its folder."""
        return self._process.poll() is not None and not _serverapps(self.federation)

    def wait_for(self, rounds: int) -> None:
        """Until so many rounds are released, or it is over."""
        _wait(lambda: self.is_over or folders.released(self.folder) >= rounds)

    def finish(self) -> None:
        """Go on to the end, if it was killed."""
        if self._process.wait() < 0:
            self.start()
            _wait(lambda: self.is_over)

    def problems(self) -> list[str]:
        """Of the folder as it is now."""
        return invariants.at_any_moment(self.folder, self.noise, "deployed")

    def end(self, found: Outcome, what: str, rounds: int | None = None) -> None:
        """Flower's run is over: nothing more must be needed, and so many rounds be released."""
        problems = invariants.at_the_end(
            self.folder, self.noise, "deployed", self.folder, self._rounds
        )
        if rounds is not None and folders.released(self.folder) != rounds:
            problems.append(f"{folders.released(self.folder)} of {rounds} rounds were released")
        found.violations += [f"{what}, at the end: {problem}" for problem in problems]


@contextmanager
def _running(nodes: int) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory() as place, Federation(Path(place)) as federation:
        federation.start_superlink()
        federation.start_supernodes(nodes)
        yield federation


def _wait(reached: Callable[[], object], limit: float = _LIMIT) -> bool:
    end = time.monotonic() + limit
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    """Of a node, in the order of their start: its SuperNode, then its worker."""
    found = []
    for pid in marked(""):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append((int(fields[19]), pid))
    return [pid for _, pid in sorted(found)]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
