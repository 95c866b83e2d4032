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
from dpfedls.privacy.ledger import Account, read_ledger, spent_epsilon
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.statement import statement
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.jsonable import plain

SEALED = ("recipe.toml", "rounds.jsonl", "ledger.sqlite", str(FILE), "model.safetensors")


def verify(folder: Path) -> dict[str, Any]:
    """Whether the folder's privacy account holds together, what was spent, and each problem."""
    plan, mode = read_promise(folder)
    ledger = folder / "ledger.sqlite"
    if not ledger.is_file():
        return _verdict(math.inf, [f"{ledger.name} is missing: nobody can say what was spent"])
    account = read_ledger(ledger)
    if account.problems:
        return _verdict(math.inf, account.problems)
    spent = spent_epsilon(plan, account.entries)
    problems = [
        *_opening_problems(folder, account, plan, mode),
        *_checkpoint_problems(folder, account),
        *_log_problems(folder, account),
        *_statement_problems(folder, account, plan, mode),
    ]
    return _verdict(spent, problems)


def read_promise(folder: Path) -> tuple[PrivacyPlan, str]:
    """The plan and the mode of a run folder, without loading the parts that train."""
    path = folder / "recipe.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(values["plan"], PrivacyPlan), str(values["mode"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} is not a run folder: it has no recipe.toml; give the folder that "
            "dpfedls run printed"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
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


def _opening_problems(folder: Path, account: Account, plan: PrivacyPlan, mode: str) -> list[str]:
    problems = []
    if account.opening.get("recipe") != file_digest(folder / "recipe.toml"):
        problems.append("recipe.toml is not the recipe that the ledger was opened for")
    if any(entry.event != plan.round_event for entry in account.entries):
        problems.append("the ledger holds rounds that the plan does not describe")
    seeded = any(entry.nonce.startswith("simulation") for entry in account.entries)
    if seeded != (mode == "simulation") and account.entries:
        problems.append(f"recipe.toml says {mode}, but the ledger's noise is of another kind")
    return problems


def _checkpoint_problems(folder: Path, account: Account) -> list[str]:
    if not (folder / FILE).is_file():
        return [] if not account.entries else [f"{FILE} is missing although rounds were paid for"]
    try:
        state = Checkpoint.load(folder)
    except InputError as error:
        return [str(error)]
    problems = []
    paid = {entry.round for entry in account.entries}
    unpaid = [t for t in range(state.round) if t not in paid]
    if unpaid:
        problems.append(f"the checkpoint holds round {unpaid[0] + 1}, which was never paid for")
    if state.ledger_head not in account.heads:
        problems.append("the checkpoint was not made after any entry of this ledger")
    return problems


def _log_problems(folder: Path, account: Account) -> list[str]:
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    try:
        rounds = [json.loads(line)["round"] for line in lines]
    except (ValueError, KeyError, TypeError):
        return ["rounds.jsonl has a line that cannot be read"]
    if rounds != list(range(1, len(rounds) + 1)):
        return ["rounds.jsonl does not list the rounds one after another"]
    if len(rounds) > len(account.entries):
        return [
            f"rounds.jsonl lists {len(rounds)} rounds, but {len(account.entries)} were paid for"
        ]
    return []


def _statement_problems(folder: Path, account: Account, plan: PrivacyPlan, mode: str) -> list[str]:
    """The statement must be, word for word, the one that these entries give."""
    try:
        stated = read_statement(folder)
    except InputError as error:
        return [str(error)]
    paid, head = len(account.entries), account.heads[-1]
    facts = plain(statement(plan, mode=mode, rounds_paid=paid, ledger_head=head))
    if stated.get("ledger_head") != head:
        return ["privacy.json was not made from this ledger: rounds were paid for since"]
    problems = [
        f"privacy.json says {key} = {stated.get(key)!s:.60}, but it is {facts[key]!s:.60}"
        for key in facts
        if key != "versions" and not _same(stated.get(key), facts[key])
    ]
    sealed = stated.get("files")
    if not isinstance(sealed, dict) or set(sealed) != {n for n in SEALED if (folder / n).exists()}:
        problems.append("privacy.json does not list the digests of the files that are here")
        return problems
    problems += [
        f"{name} is not the file that privacy.json was made from"
        for name, digest in sealed.items()
        if file_digest(folder / name) != digest
    ]
    return problems


def _same(stated: Any, found: Any) -> bool:
    """Equal, numbers to the last digits that another version of a library may round otherwise."""
    if isinstance(found, dict) and isinstance(stated, dict):
        return stated.keys() == found.keys() and all(_same(stated[k], found[k]) for k in found)
    if isinstance(found, list) and isinstance(stated, list):
        return len(stated) == len(found) and all(map(_same, stated, found))
    if isinstance(found, float) and isinstance(stated, float | int):
        return math.isclose(stated, found, rel_tol=1e-6)
    return type(stated) is type(found) and stated == found
