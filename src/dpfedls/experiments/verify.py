"""Recompute a run's privacy from its folder, and name whatever does not add up. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.errors import InputError
from dpfedls.experiments.checkpoint import FILE, Checkpoint
from dpfedls.privacy.ledger import Entry, read_ledger, spent_epsilon
from dpfedls.privacy.plan import PrivacyPlan


def verify(folder: Path) -> dict[str, Any]:
    """Whether the folder's privacy account holds together, what was spent, and each problem."""
    plan = read_plan(folder)
    ledger = folder / "ledger.sqlite"
    if not ledger.is_file():
        return _verdict(math.inf, [f"{ledger.name} is missing: nobody can say what was spent"])
    opening, entries, problems, head = read_ledger(ledger)
    spent = spent_epsilon(plan, entries)
    if opening and msgspec.convert(opening["plan"], PrivacyPlan) != plan:
        problems.append("recipe.toml promises another plan than the ledger was opened for")
    if any(entry.event != plan.round_event for entry in entries):
        problems.append("the ledger holds rounds that the plan does not describe")
    problems += _checkpoint_problems(folder, entries, head)
    problems += _log_problems(folder, entries)
    problems += _statement_problems(folder, spent, len(entries), head)
    return _verdict(spent, problems)


def read_plan(folder: Path) -> PrivacyPlan:
    """The plan of a run folder, without loading the parts that train."""
    path = folder / "recipe.toml"
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8"))["plan"], PrivacyPlan)
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} is not a run folder: it has no recipe.toml; give the folder that "
            "dpfedls run printed"
        ) from error
    except (
        tomllib.TOMLDecodeError,
        UnicodeDecodeError,
        KeyError,
        msgspec.ValidationError,
    ) as error:
        raise InputError(
            f"{path} does not hold a readable plan ({error}); restore it from a backup"
        ) from error


def read_statement(folder: Path) -> dict[str, Any]:
    """The privacy statement of a run folder."""
    try:
        return json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} has no readable privacy.json ({error}); finish the run with: "
            f"dpfedls resume {folder}"
        ) from error


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _verdict(spent: float, problems: list[str]) -> dict[str, Any]:
    return {"valid": not problems, "spent_epsilon": spent, "problems": problems}


def _checkpoint_problems(folder: Path, entries: list[Entry], head: str) -> list[str]:
    if not (folder / FILE).is_file():
        return [] if not entries else [f"{FILE} is missing although rounds were paid for"]
    try:
        state = Checkpoint.load(folder)
    except InputError as error:
        return [str(error)]
    problems = []
    paid = {entry.round for entry in entries}
    unpaid = [t for t in range(state.round) if t not in paid]
    if unpaid:
        problems.append(f"the checkpoint holds round {unpaid[0] + 1}, which was never paid for")
    if not entries or (len(entries) == state.round and state.ledger_head != head):
        problems.append("the ledger's last entry is not the one the checkpoint was made after")
    return problems


def _log_problems(folder: Path, entries: list[Entry]) -> list[str]:
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    try:
        rounds = [json.loads(line)["round"] for line in lines]
    except (ValueError, KeyError, TypeError):
        return ["rounds.jsonl has a line that cannot be read"]
    if rounds != list(range(1, len(rounds) + 1)):
        return ["rounds.jsonl does not list the rounds one after another"]
    if len(rounds) > len(entries):
        return [f"rounds.jsonl lists {len(rounds)} rounds, but {len(entries)} were paid for"]
    return []


def _statement_problems(folder: Path, spent: float, paid: int, head: str) -> list[str]:
    try:
        stated = read_statement(folder)
    except InputError as error:
        return [str(error)]
    problems = []
    if stated.get("ledger_head") != head or stated.get("mechanism", {}).get("rounds_paid") != paid:
        problems.append("privacy.json was not made from this ledger: rounds were paid for since")
    claimed = stated.get("epsilon")
    if not isinstance(claimed, float) or claimed < spent * (1 - 1e-9):
        problems.append(f"privacy.json claims ε = {claimed}, but ε = {spent:.6g} was spent")
    for name, digest in stated.get("files", {}).items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif file_digest(path) != digest:
            problems.append(f"{name} is not the file that privacy.json was made from")
    return problems
