"""The small run that is tortured, and what its folder says, read without the product's readers."""

from __future__ import annotations

import functools
import json
import math
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import dp_accounting
from dp_accounting import pld

from torture.process import command, forked

MODES = ("simulation", "deployed")
RATE, NOISE, PEOPLE = 0.1, 1.0, 60
DELTA = PEOPLE**-1.1


def settings(mode: str, rounds: int) -> list[str]:
    """What of the recipe is overridden."""
    values = {
        "plan.num_clients": PEOPLE,
        "plan.sampler.rate": RATE,
        "plan.noise_multiplier": NOISE,
        "plan.rounds": rounds,
        "mode": mode,
    }
    return [f"{key}={value}" for key, value in values.items()]


def started(folder: Path, mode: str, rounds: int = 20) -> Callable[[], None]:
    """Work that starts the run in a folder: logistic regression, tens of milliseconds a round."""
    chosen = [word for setting in settings(mode, rounds) for word in ("--set", setting)]
    return command("run", "synthetic", *chosen, "--out", folder)


def continued(folder: Path, mode: str, rounds: int = 20) -> Callable[[], None]:
    """Work that goes on as a person would: resume, or run where nothing was begun."""
    if (folder / "recipe.toml").is_file():
        return command("resume", folder)
    return started(folder, mode, rounds)


class Payment(NamedTuple):
    """A round that was paid for, and the name of its noise."""

    round: int
    nonce: str


def paid(folder: Path) -> set[Payment]:
    """What the ledger says, by SQLite alone; a copy is opened, so the folder stays as it is."""
    if not (folder / "ledger.sqlite").is_file():
        return set()
    with tempfile.TemporaryDirectory() as place:
        for path in folder.glob("ledger.sqlite*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, place)
        with closing(sqlite3.connect(Path(place) / "ledger.sqlite")) as connection:
            known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'entries'")
            if known.fetchone() is None:
                return set()
            rows = connection.execute("SELECT payload FROM entries ORDER BY seq").fetchall()
    entries = [json.loads(payload) for (payload,) in rows[1:]]
    return {Payment(entry["round"], entry["nonce"]) for entry in entries}


def released(folder: Path) -> int:
    """How many rounds the folder shows: by checkpoint, log or statement, whichever has more."""
    return max(checkpoint_round(folder), len(log_lines(folder)), _stated_rounds(folder))


def log_lines(folder: Path) -> list[dict[str, object]]:
    """The whole lines of the log, less the time that each took."""
    path = folder / "rounds.jsonl"
    raw = path.read_bytes() if path.is_file() else b""
    whole = raw[: raw.rfind(b"\n") + 1].splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in whole]


def _stated_rounds(folder: Path) -> int:
    path = folder / "privacy.json"
    stated = json.loads(path.read_bytes()) if path.is_file() else {"mechanism": {"rounds_paid": 0}}
    return int(stated["mechanism"]["rounds_paid"]) if not log_lines(folder) else 0


def weights(folder: Path) -> bytes:
    """Model and last state, byte by byte; the heads of the ledger, random by name, left out."""
    model = (folder / "model.safetensors").read_bytes()
    state = (folder / "checkpoint" / "state.safetensors").read_bytes()
    return model + state[8 + int.from_bytes(state[:8], "little") :]


@functools.cache
def epsilon(releases: int) -> float:
    """ε of so many rounds, by dp_accounting alone."""
    if releases == 0:
        return 0.0
    event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(NOISE))
    return pld.PLDAccountant().compose(event, releases).get_epsilon(DELTA)


class Verdict(NamedTuple):
    """What ``dpfedls privacy verify`` says of a folder."""

    valid: bool
    epsilon: float  # infinite where nobody can know
    reasons: str
    problems: list[str]  # of the answer itself, not of the folder


def verified(folder: Path) -> Verdict:
    """Ask ``dpfedls privacy verify``."""
    answer = forked(command("privacy", "verify", folder, "--json"))
    try:
        said = json.loads(answer.out)
    except ValueError:
        return Verdict(False, math.inf, answer.complaint, answer.problems(2))
    reasons = said["problems"]
    problems = [f"{why!r} is not one line" for why in reasons if "\n" in why]
    if "Traceback" in answer.err or answer.code != (0 if said["valid"] else 1):
        problems.append(f"exit code {answer.code}: {answer.err[-200:]}")
    spent = said["spent_epsilon"]
    return Verdict(
        said["valid"], math.inf if spent is None else float(spent), "; ".join(reasons), problems
    )


def checkpoint_round(folder: Path) -> int:
    """How many rounds the checkpoint holds; none where it is absent."""
    path = folder / "checkpoint" / "state.safetensors"
    if not path.is_file():
        return 0
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return int(header["__metadata__"]["state"].split(" ")[0])
