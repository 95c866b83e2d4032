"""What several runs on the same people cost together, from their ledgers. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dpfedls.errors import InputError
from dpfedls.privacy.account import Entry, read_ledger
from dpfedls.privacy.accountants import epsilon
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.plan import PrivacyPlan


class _Paid(NamedTuple):
    """A run's promise, its own name, and its payments."""

    folder: Path
    plan: PrivacyPlan
    run: str
    entries: list[Entry]


def total(folders: Sequence[Path], delta: float | None = None) -> dict[str, Any]:
    """ε of all the runs' rounds in one composition, at the largest of their δ or the one given.

    Guarantees: an upper bound for a person who is in all the runs, and so for one who is in some.
    A payment that two folders share, one being a copy of the other, is one release.
    """
    runs = [_read(folder) for folder in folders]
    if not runs:
        raise InputError("no run folder was given; give those of all runs on the same people")
    _require_one_relation(runs)
    # A seeded nonce is unique within a run only, so the run's name goes with it.
    released = {(run.run, entry) for run in runs for entry in run.entries}
    at = max(run.plan.target_delta for run in runs) if delta is None else delta
    return {
        "epsilon": _cost([entry for _, entry in released], at),
        "delta": at,
        "relation": runs[0].plan.relation,
        "runs": [
            {
                "run": str(run.folder),
                "rounds": len(run.entries),
                "clients": run.plan.num_clients,
                "epsilon": _cost(run.entries, run.plan.target_delta),
                "delta": run.plan.target_delta,
            }
            for run in runs
        ],
        "assumed": _assumed(runs, sum(len(set(run.entries)) for run in runs) - len(released)),
    }


def _read(folder: Path) -> _Paid:
    path = folder / "ledger.sqlite"
    if not path.is_file():
        raise InputError(
            f"{folder} has no ledger.sqlite, so nobody can say what it spent; give the folder "
            "that dpfedls run printed"
        )
    account = read_ledger(path)
    if account.problems:
        raise InputError(
            f"{folder}: {account.problems[0]}; a sum without it would be too small: see "
            f"dpfedls privacy verify {folder}"
        )
    try:
        plan = msgspec.convert(account.opening["plan"], PrivacyPlan)
        return _Paid(folder, plan, str(account.opening["run"]), account.entries)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{path} was not opened for a run ({error}); give the folders of runs"
        ) from error


def _require_one_relation(runs: list[_Paid]) -> None:
    first = runs[0]
    for run in runs:
        if run.plan.relation != first.plan.relation:
            raise InputError(
                f"{first.folder} promises under {first.plan.relation} and {run.folder} under "
                f"{run.plan.relation}: different promises, which have no common ε; add up each "
                "kind by itself"
            )


def _cost(entries: Sequence[Entry], delta: float) -> float:
    spent: Counter[RoundEvent] = Counter(entry.event for entry in entries)
    return epsilon(list(spent.items()), delta)


def _assumed(runs: list[_Paid], shared: int) -> list[str]:
    sizes = sorted({run.plan.num_clients for run in runs})
    people = "the runs are on the same people"
    if len(sizes) > 1:
        people += f", although their plans count {' and '.join(map(str, sizes))} clients"
    copies = f"folders that share payments ({shared} here) are copies of one run: each counts once"
    return [
        *([copies] if shared else []),
        f"{people}; somebody in only some of them loses less",
        "no run's plan was chosen by looking at what another had released",
        "these are all the runs on them",
    ]
