"""Recompute a run's privacy from its folder, and name whatever does not add up. Needs no torch.

Nothing is written: the folder may be evidence on a read-only disk.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from dpfedls.errors import InputError
from dpfedls.privacy import bounded
from dpfedls.privacy.account import Account, read_ledger
from dpfedls.privacy.earlier_words import in_present_words
from dpfedls.privacy.ledger import spent_epsilon
from dpfedls.privacy.observers import Nodes
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.privacy.population import unpaid_problems
from dpfedls.privacy.statement import statement
from dpfedls.privacy.wording import diverged, left_without_noise
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.jsonable import plain
from dpfedls.runs.log import altered_line, log_heads
from dpfedls.runs.model_file import trained_vector
from dpfedls.runs.seal import SEALED, STATEMENT, content_digest

EARLIER = "the wording of the statement is of an earlier version of dpfedls; its facts agree"


class Check(NamedTuple):
    """One thing that was looked at, and what is wrong with it."""

    what: str
    problems: list[str]


def verify(folder: Path) -> dict[str, Any]:
    """Whether the folder's privacy account holds together, what was spent, and each problem."""
    plan, mode, nodes = read_promise(folder)
    ledger = folder / "ledger.sqlite"
    if ledger.is_file():
        account = read_ledger(ledger)
    else:
        missing = f"{ledger.name} is missing: nobody can say what was spent"
        account = Account({}, [], [], [missing])
    checks = [Check("the ledger's hash chain is unbroken", account.problems)]
    if account.problems:
        return _verdict(plan, mode, nodes, math.inf, checks)
    state, damage = _checkpoint(folder, account)
    checks += [
        Check("the ledger was opened for this recipe", _opening_problems(folder, account, plan)),
        Check(f"the noise was drawn as {mode} draws it", _noise_problems(account, mode)),
        Check("every round in the checkpoint was paid for", damage),
        Check("every round in the log was paid for", _log_problems(folder, account, state)),
    ]
    shared, unseen = _population(folder)
    if shared is not None:
        paid = f"every round was paid into the population {shared.stem} too"
        checks.append(Check(paid, unpaid_problems(shared, account)))
    notes = []
    try:
        stated = read_statement(folder)
    except InputError as error:
        checks.append(Check("the run was finished and sealed", [str(error)]))
    else:
        ended = diverged(state.round) if state is not None and state.diverged else {}
        wrong, notes = _statement_problems(stated, account, plan, mode, nodes, ended)
        checks += [
            Check("the statement is what the ledger gives", wrong),
            Check("no file was altered since the run was sealed", _file_problems(folder, stated)),
            Check(
                "no model was handed out" if ended else "the model is the checkpoint's",
                _model_problems(folder, state),
            ),
        ]
    spent = spent_epsilon(plan, account.entries)
    return _verdict(plan, mode, nodes, spent, checks) | {"not_checked": unseen, "notes": notes}


def read_promise(folder: Path) -> tuple[PrivacyPlan, str, Nodes | None]:
    """Plan, mode and nodes of a run folder, without loading the parts that train."""
    path = folder / "recipe.toml"
    try:
        values = tomllib.loads(bounded.read_bounded(path, bounded.SETTINGS).decode("utf-8-sig"))
        nodes = msgspec.convert(values.get("nodes"), Nodes | None)
        mode = msgspec.convert(values["mode"], Literal["simulation", "deployed"])
        return msgspec.convert(values["plan"], PrivacyPlan), mode, nodes
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} is not a run folder: it has no recipe.toml; give the folder that "
            "dpfedls run printed"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} does not hold a readable plan ({error}); restore it from a backup"
        ) from error


def read_statement(folder: Path) -> dict[str, Any]:
    """The privacy statement of a run folder."""
    try:
        raw = bounded.read_bounded(folder / STATEMENT, bounded.STATEMENT)
        return msgspec.convert(json.loads(raw), dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{folder} has no readable privacy.json ({error}); finish the run as it was "
            f"begun, with: dpfedls resume {folder}, or by the same call of dpfedls.train"
        ) from error


def _verdict(
    plan: PrivacyPlan, mode: str, nodes: Nodes | None, spent: float, checks: list[Check]
) -> dict[str, Any]:
    problems = [problem for check in checks for problem in check.problems]
    return {
        "valid": not problems,
        "spent_epsilon": spent,
        "delta": plan.target_delta,
        "relation": plan.relation,
        "mode": mode,
        "left_without_noise": left_without_noise(nodes),
        "checks": [
            {"check": check.what, "ok": not check.problems, "detail": "; ".join(check.problems)}
            for check in checks
        ],
        "not_checked": [],  # what would have to lie beside the folder
        "notes": [],  # what is no fault, and still worth knowing
        "problems": problems,
    }


def _population(folder: Path) -> tuple[Path | None, list[str]]:
    """Where the population that the run names keeps its account, or why nobody can look."""
    values = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8-sig"))
    name = values.get("population")
    if name is None:
        return None, []
    path = Path(str(name))
    if path.is_absolute() and path.is_file():
        return path, []
    return None, [
        f"that every round was paid into the population {path.stem}: its account {path} is not "
        "here; verify the folder on the machine where the run was made"
    ]


def _opening_problems(folder: Path, account: Account, plan: PrivacyPlan) -> list[str]:
    problems = []
    if account.opening.get("recipe") != bounded.file_digest(folder / "recipe.toml"):
        problems.append("recipe.toml is not the recipe that the ledger was opened for")
    if any(entry.event != plan.round_event for entry in account.entries):
        problems.append("the ledger holds rounds that the plan does not describe")
    return problems


def _noise_problems(account: Account, mode: str) -> list[str]:
    seeded = any(entry.nonce.startswith("simulation") for entry in account.entries)
    if seeded != (mode == "simulation") and account.entries:
        return [f"recipe.toml says {mode}, but the ledger's noise is of another kind"]
    return []


def _checkpoint(folder: Path, account: Account) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint if it can be read, and what is wrong with it."""
    if not (folder / FILE).is_file():
        lost = f"{FILE} is missing although rounds were paid for"
        return None, [lost] if account.entries else []
    try:
        state = Checkpoint.load(folder)
    except InputError as error:
        return None, [str(error)]
    problems = []
    paid = {entry.round for entry in account.entries}
    unpaid = [t for t in range(state.round) if t not in paid]
    if unpaid:
        problems.append(f"the checkpoint holds round {unpaid[0] + 1}, which was never paid for")
    if state.ledger_head not in account.heads:
        problems.append("the checkpoint was not made after any entry of this ledger")
    return state, problems


def _log_problems(folder: Path, account: Account, state: Checkpoint | None) -> list[str]:
    path = folder / "rounds.jsonl"
    try:
        raw = bounded.read_bounded(path, bounded.LOG) if path.is_file() else b""
        lines = raw.splitlines()
        rounds, heads = [json.loads(line)["round"] for line in lines], log_heads(lines)
    except InputError as error:
        return [str(error)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ["rounds.jsonl has a line that cannot be read"]
    if rounds != list(range(1, len(rounds) + 1)):
        return ["rounds.jsonl does not list the rounds one after another"]
    if len(rounds) > len(account.entries):
        return [
            f"rounds.jsonl lists {len(rounds)} rounds, but {len(account.entries)} were paid for"
        ]
    line = altered_line(heads, account.payments)
    if line is None and state is not None and state.log_head not in ("", *heads[state.lines :][:1]):
        line = state.lines
    if line is not None:
        return [f"rounds.jsonl was altered: up to line {line} it is not what was paid for"]
    return []


def _statement_problems(
    stated: dict[str, Any],
    account: Account,
    plan: PrivacyPlan,
    mode: str,
    nodes: Nodes | None,
    ended: dict[str, Any],
) -> tuple[list[str], list[str]]:
    """The statement must be the one that these entries give; and what is to be noted of it.

    Facts are compared one by one, sentences word for word with those that this version writes or
    an earlier one wrote in their place.
    """
    if stated.get("ledger_head") != account.heads[-1]:
        return [f"{STATEMENT} was not made from this ledger: rounds were paid for since"], []
    facts = statement(
        plan,
        mode=mode,
        rounds_paid=len(account.entries),
        ledger_head=account.heads[-1],
        nodes=nodes,
        **_told(stated),
    )
    facts |= ended
    found = {key: value for key, value in plain(facts).items() if key != "versions"}
    said = {key: value for key, value in stated.items() if key not in ("versions", "files")}
    present = in_present_words(said, found)
    problems = [
        f"{STATEMENT} says {where} = {_shown(old)}, but it is {_shown(new)}"
        for key in found
        for where, old, new in list(_differences(key, present.get(key, UNSET), found[key]))[:1]
    ]
    more = sorted(present.keys() - found.keys())
    problems += [f"{STATEMENT} has {key!r}, which no statement has" for key in more]
    return problems, [] if problems or present == said else [EARLIER]


def _told(stated: dict[str, Any]) -> dict[str, Any]:
    """What plan and ledger do not know: taken as stated, for the seal to guard."""
    told = {"test_from": stated.get("test_from")}
    mechanism = stated.get("mechanism")
    if isinstance(mechanism, dict):
        told["most_samples"] = mechanism.get("most_samples")
    return {key: value for key, value in told.items() if value is not None}


def _file_problems(folder: Path, stated: dict[str, Any]) -> list[str]:
    sealed = stated.get("files")
    if not isinstance(sealed, dict):
        return [f"{STATEMENT} does not list the digests of the run's files"]
    problems = []
    if sealed.get(STATEMENT) != content_digest(stated):
        problems.append(f"{STATEMENT} was altered since it was written")
    for name in SEALED:
        there = (folder / name).is_file()
        if there and name not in sealed:
            problems.append(f"{name} is not among the files that {STATEMENT} was made from")
        elif not there and name in sealed:
            problems.append(f"{name} is missing")
        elif there and not _is_file(folder / name, sealed[name]):
            problems.append(f"{name} is not the file that {STATEMENT} was made from")
    return problems


def _is_file(path: Path, digest: str) -> bool:
    try:
        return bounded.file_digest(path) == digest
    except InputError:  # larger than any file of ours
        return False


def _model_problems(folder: Path, state: Checkpoint | None) -> list[str]:
    """Bit for bit: the model that people are given is the one that was paid for."""
    path = folder / "model.safetensors"
    if state is None or not path.is_file():  # named already
        return []
    try:
        trained = trained_vector(path)
    except InputError as error:
        return [str(error)]
    if state.diverged:
        return [f"{path.name} is there, but the run diverged and has no model"]
    if trained.tobytes() != state.average.tobytes():
        return [f"{path.name} does not hold the weights of the checkpoint"]
    return []


def _differences(where: str, stated: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each place where they differ, as it is named in JSON, and what stands there."""
    if isinstance(found, dict) and isinstance(stated, dict):
        for key in found | stated:
            values = (stated.get(key, UNSET), found.get(key, UNSET))
            yield from _differences(f"{where}.{key}", *values)
    elif isinstance(found, list) and isinstance(stated, list):
        for k, values in enumerate(zip_longest(stated, found, fillvalue=UNSET)):
            yield from _differences(f"{where}[{k}]", *values)
    elif not _same(stated, found):
        yield where, stated, found


def _shown(value: Any) -> str:
    return "nothing" if value is UNSET else f"{value!s:.200}"


def _same(stated: Any, found: Any) -> bool:
    """Equal, numbers to the last digits that another version of a library may round otherwise."""
    if isinstance(found, float) and isinstance(stated, float):
        return math.isclose(stated, found, rel_tol=1e-6)
    return type(stated) is type(found) and stated == found
