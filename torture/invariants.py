"""What must hold in a run folder whatever happened to the process that wrote it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from torture import folders, watched

_DIGITS = 1e-3  # two accountants round on grids of their own


def at_any_moment(folder: Path, noise: Path, mode: str) -> list[str]:
    """Released ⊆ paid, noise only for what is paid, no key twice. Nothing is written."""
    try:
        payments, shown = folders.paid(folder), folders.released(folder)
    except (ValueError, KeyError, sqlite3.Error) as error:
        return [f"a file cannot be read: {error}"]
    problems = []
    missing = set(range(shown)) - {payment.round for payment in payments}
    if missing:
        problems.append(f"round {min(missing) + 1} is shown and was never paid for")
    drawn = watched.draws(noise)
    if mode == "deployed" and drawn > len(payments):
        problems.append(f"noise was drawn {drawn} times for {len(payments)} payments")
    if watched.keys_used_twice(noise):
        problems.append("a key of the noise was used twice")
    return problems


def at_the_end(folder: Path, noise: Path, mode: str, whole: Path, rounds: int = 20) -> list[str]:
    """The run is valid, its model loads, and a seeded one has the bytes of an undisturbed one.

    ε of the ledger is at least that of all noise that was ever drawn, also for what was lost.
    """
    problems = at_any_moment(folder, noise, mode)
    verdict = folders.verified(folder)
    problems += verdict.problems
    if not verdict.valid:
        return [*problems, f"the finished run does not verify: {verdict.reasons}"]
    releases = watched.draws(noise) if mode == "deployed" else folders.released(folder)
    if verdict.epsilon < folders.epsilon(releases) * (1 - _DIGITS):
        problems.append(f"ε = {verdict.epsilon:.4g} after {releases} releases")
    if not _loads(folder / "model.safetensors"):
        problems.append("the model does not load")
    if len(folders.paid(folder)) > rounds:
        problems.append(f"{len(folders.paid(folder))} rounds were paid for, {rounds} were promised")
    if mode == "simulation":
        if folders.weights(folder) != folders.weights(whole):
            problems.append("other bytes than an undisturbed run")
        problems += log_problems(folders.log_lines(folder), folders.log_lines(whole))
    left = [path.name for path in folder.rglob(".*.part")]
    return problems + [f"{name} was left behind" for name in left]


def log_problems(lines: list[dict], known: list[dict]) -> list[str]:
    """The same but for ε, which may be higher: rounds lost in a power cut are paid for already."""
    if [line | {"epsilon": 0} for line in lines] != [line | {"epsilon": 0} for line in known]:
        return ["another log than an undisturbed run"]
    if any(line["epsilon"] < was["epsilon"] for line, was in zip(lines, known, strict=True)):
        return ["the log shows a lower ε than an undisturbed run"]
    return []


def _loads(path: Path) -> bool:
    try:
        return all(np.isfinite(tensor).all() for tensor in load_file(path).values())
    except SafetensorError:
        return False
