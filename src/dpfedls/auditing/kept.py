"""What a run folder shows of a run by itself: exact files and keys, payments, no seconds.

Nothing is written there and nothing is run, so the folder of a deployment may be looked at between
any two of its rounds. How much noise its releases carry cannot be seen from it: releases are not
kept, and a model is a sum of them.
"""

from __future__ import annotations

import html
import json
import math
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from dpfedls.errors import InputError
from dpfedls.privacy.account import Account, read_ledger
from dpfedls.privacy.durable import is_temporary
from dpfedls.runs.checkpoint import FILE
from dpfedls.runs.folder import read_recipe, read_rounds
from dpfedls.runs.model_file import model_metadata
from dpfedls.runs.origin import OwnCode, commit, noted
from dpfedls.runs.recipe import PYTHON, Recipe
from dpfedls.runs.report import read_notes, write_report
from dpfedls.runs.seal import STATEMENT, is_finished
from dpfedls.runs.simulate import trusted
from dpfedls.runs.verify import verify

LEDGER = "ledger.sqlite"
BEGUN = {"recipe.toml", "notes.json", LEDGER}
RELEASED = {"rounds.jsonl", str(FILE)}
MODEL = "model.safetensors"
SEALED = {STATEMENT, "report.html", MODEL}
"""All that a run folder may hold. Whoever adds to it says here what it is made from."""
CRASHED = {f"{LEDGER}-wal", f"{LEDGER}-shm"}  # the ledger's own, while it is open or after a crash
LINE = {"round", "epsilon", "clip_norm", "server_rate", "accuracy", "loss", "metrics"}
NOTES = {"engine", "model", "own_code", "started", "made_by"}
NOTED_LATER = {"started", "made_by"}  # not by the earliest versions
OWN_CODE = set(OwnCode.__struct_fields__)
OPENING = {"format", "plan", "budget", "recipe", "run"}
TABLES = {"entries", "sqlite_sequence"}
_NONCE = 32  # hexadecimal digits: 128 bits


def kept_problems(folder: Path) -> list[str]:
    """What a run folder holds that it should not, or lacks, or does not agree with itself."""
    recipe, account = read_recipe(folder), read_ledger(folder / LEDGER)
    sealed = (folder / STATEMENT).is_file()
    return [
        *_names(folder, recipe, bool(account.entries), sealed),
        *_keys(folder, recipe),
        *_payments(folder, recipe, account),
        *(_page_problems(folder, recipe) if sealed else []),
        *_verified(folder, sealed),
    ]


def recipe_of_run(folder: Path, trust: bool) -> Recipe:
    """The recipe of a run folder, if all that an audit of it would run is at hand and trusted."""
    recipe = read_recipe(folder)
    if recipe.task == PYTHON:
        raise InputError(
            f"{folder} was started by dpfedls.train with a model and data that are not in it; call "
            "dpfedls.audit in Python with the arguments that train was given, this folder too"
        )
    return trusted(recipe, folder, trust)


def _names(folder: Path, recipe: Recipe, paid: bool, sealed: bool) -> list[str]:
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.is_dir() and (sealed or not is_temporary(path))  # half-written in a crash
    }
    allowed = BEGUN | RELEASED | SEALED | (set() if sealed else CRASHED)
    allowed |= {"diagnostics.jsonl"} if recipe.diagnose else set()
    allowed |= {"attack.json"} if recipe.mode == "simulation" else set()
    needed = BEGUN | (RELEASED | SEALED if sealed else set())
    if sealed and not is_finished(folder):  # a run that diverged hands out no model
        allowed, needed = allowed - {MODEL}, needed - {MODEL}
    if sealed and not paid:
        needed -= {str(FILE)}
    return [f"{name} should not be in the run folder" for name in sorted(found - allowed)] + [
        f"{name} is missing from the run folder" for name in sorted(needed - found)
    ]


def _keys(folder: Path, recipe: Recipe) -> list[str]:
    """The log's, the notes' and the model's: each exactly what it should have."""
    allowed = LINE | ({"seconds"} if recipe.mode == "simulation" else set())
    problems = [
        f"{key!r} should not be in rounds.jsonl"
        for key in sorted({key for line in log_lines(folder) for key in line} - allowed)
    ]
    notes = read_notes(folder)
    if notes and not NOTES - NOTED_LATER <= notes.keys() <= NOTES:
        problems.append("notes.json holds more, or less, than engine, model, own code and origin")
    if any(code.keys() - OWN_CODE for code in notes.get("own_code", [])):
        problems.append("notes.json holds more of own code than names and digests")
    model = folder / MODEL
    if model.is_file():
        raw = model.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        said = header.pop("__metadata__", {})
        trained = json.loads(said.get("dpfedls", "{}")).get("trained", [])
        if said != model_metadata(recipe.mode, trained):
            problems.append("model.safetensors says more of itself than mode and trained tensors")
    return problems


def _payments(folder: Path, recipe: Recipe, account: Account) -> list[str]:
    if account.problems:  # verify names them
        return []
    problems = []
    if account.opening.keys() != OPENING or _tables(folder) != TABLES:
        problems.append("the ledger holds more than its opening and its payments")
    nonces = [entry.nonce for entry in account.entries]
    if len(set(nonces)) < len(nonces):
        problems.append("two payments share a nonce, the name of their noise")
    if recipe.mode == "deployed" and any(not _is_random(nonce) for nonce in nonces):
        problems.append("a nonce of deployed noise is not 128 random bits")
    lines = log_lines(folder)
    if recipe.mode == "deployed" and len(lines) > len(nonces):
        problems.append("more rounds were released than paid for")
    return problems


def kept_notes(folder: Path) -> list[str]:
    """What is no fault of a run folder, and still worth knowing."""
    if not (folder / "report.html").is_file() or _made_here(folder):
        return []
    return [
        f"report.html was made by another version of dpfedls ({_maker(folder) or 'not noted'}), so "
        "it cannot be made again for comparison; its ε and its recipe are those of the run"
    ]


def _made_here(folder: Path) -> bool:
    """Whether this very code sealed the run: each that makes rounds notes its commit, last."""
    return _maker(folder) == commit()


def _maker(folder: Path) -> str:
    return next(reversed(noted(folder / "notes.json").made_by), "")


def _page_problems(folder: Path, recipe: Recipe) -> list[str]:
    """The report is made again, from the log and the statement; another version's has its facts."""
    report = folder / "report.html"
    if not report.is_file():  # named already
        return []
    stated = json.loads((folder / STATEMENT).read_bytes())
    if not _made_here(folder):
        return _page_facts_problems(folder, stated)
    facts = {key: value for key, value in stated.items() if key != "files"}
    with tempfile.TemporaryDirectory(prefix="dpfedls-") as place:
        twin = Path(shutil.copytree(folder, Path(place) / folder.name))
        (twin / "report.html").unlink()
        write_report(twin, recipe, read_rounds(folder), facts)
        if report.read_bytes() == (twin / "report.html").read_bytes():
            return []
    return ["report.html is not the page that this version makes of log and statement"]


def _page_facts_problems(folder: Path, stated: dict[str, Any]) -> list[str]:
    page = (folder / "report.html").read_text("utf-8")
    spent = "∞" if math.isinf(float(stated["epsilon"])) else f"{stated['epsilon']:.4g}"
    facts = {
        f"ε = {spent}, which was spent": f">{spent}<",
        "the recipe of the run": html.escape((folder / "recipe.toml").read_text("utf-8").strip()),
    }
    return [
        f"report.html does not show {what}" for what, shown in facts.items() if shown not in page
    ]


def _verified(folder: Path, sealed: bool) -> list[str]:
    checks: Iterable[dict[str, Any]] = verify(folder)["checks"]
    unfinished = "the run was finished and sealed"
    return [
        f"verify: {check['detail']}"
        for check in checks
        if not check["ok"] and (sealed or check["check"] != unfinished)
    ]


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl as they are written, but for one that a crash cut short."""
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def _tables(folder: Path) -> set[str]:
    with tempfile.TemporaryDirectory(prefix="dpfedls-") as place:  # opened, SQLite would write
        for name in (LEDGER, f"{LEDGER}-wal"):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, Path(place) / name)
        with closing(sqlite3.connect(Path(place) / LEDGER)) as connection:
            found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            return {name for (name,) in found}


def _is_random(nonce: str) -> bool:
    """Whether it looks like one: many such names have all their digits in use."""
    return len(nonce) == _NONCE and len(set(nonce)) > 4
