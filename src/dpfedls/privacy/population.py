"""One budget for all runs on the same people: a ledger outside their folders that each pays into.

A run's own ledger says what that run costs; what a person loses is the sum over all runs that
learn from them. The argument is in docs/privacy.md, "Several runs".
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.privacy import hash_chain
from dpfedls.privacy.account import Account, Entry, read_account, read_ledger
from dpfedls.privacy.accountants import check_delta, check_epsilon, epsilon
from dpfedls.privacy.durable import make_folder
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.ledger import SqliteLedger

log = logging.getLogger("dpfedls")
_WAIT = 60.0  # seconds; other runs hold the file for milliseconds at a time


class Population:
    """The account of one population; runs in several processes may pay into it at once.

    Guarantees: a payment is on disk before ``spend`` ends; from looking to paying nobody else pays,
    so two runs never both spend the last of the budget; the same nonce is the same payment.
    """

    def __init__(self, path: Path, budget: float | None = None, delta: float | None = None) -> None:
        """Open the account, with a budget at δ the first time; later these may be left out."""
        self.path = path
        self._entries: set[Entry] = set()
        self._heads = [""]
        self._covered: Counter[RoundEvent] = Counter()  # rounds known to stay within the budget
        if budget is not None:
            check_epsilon(budget)
        if delta is not None:
            check_delta(delta)
        if budget is None or delta is None:
            self._require_opened()
        make_folder(path.parent)
        given = {"format": 1, "population": True, "budget": budget, "delta": delta}
        self.budget, self.delta = self._prepare(
            {key: value for key, value in given.items() if value is not None}
        )

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        """Pay for one release, or raise BudgetExhausted and leave no trace."""
        entry = Entry(round_, event, nonce)
        with closing(self._connect()) as connection, hash_chain.transaction(connection):
            self._catch_up(connection)
            if entry in self._entries:  # the same noise on the same sum: nothing new is learned
                return
            self._require_cover(event)
            head = hash_chain.append(connection, self._heads[-1], msgspec.json.encode(entry))
        self._heads.append(head)
        self._entries.add(entry)

    def check(self, event: RoundEvent) -> None:
        """Refuse another such round if the budget does not cover it."""
        with closing(self._connect()) as connection:
            self._catch_up(connection)
        self._require_cover(event)

    def epsilon(self) -> float:
        """What all runs together have spent, at this population's delta."""
        with closing(self._connect()) as connection:
            self._catch_up(connection)
        return epsilon(list(self._spent().items()), self.delta)

    def require_paid(self, own: SqliteLedger) -> None:
        """Refuse a run of which a round is not in this account: it would be spent twice."""
        with closing(self._connect()) as connection:
            self._catch_up(connection)
        if missing := _unpaid(own.run, own.entries, self._entries):
            raise InputError(
                f"{self.path} does not hold round {missing[0]}, which {own.path} paid for; it is "
                "not the account that the run began with, or one of an earlier day, and going on "
                "would spend the same privacy twice: restore the account from a backup"
            )

    def _require_opened(self) -> None:
        """A crash may leave a file without an entry: nothing was ever spent from it."""
        if self.path.is_file():
            with closing(self._connect()) as connection:
                if hash_chain.rows_after(connection):
                    return
        raise InputError(
            f"{self.path} is missing or empty, so it is not known what this population may spend "
            "and has spent; restore the file from a backup, or give budget where this is the first "
            "run of the population: its δ is the plan's"
        )

    def _prepare(self, given: dict[str, Any]) -> tuple[float, float]:
        with closing(self._connect()) as connection, hash_chain.transaction(connection):
            rows = hash_chain.rows_after(connection)
            if not rows:
                hash_chain.append(connection, "", msgspec.json.encode(given))
                log.warning(
                    "%s is a new account: its population may spend ε = %g at δ = %.3g in all",
                    *(self.path, given["budget"], given["delta"]),
                )
                return given["budget"], given["delta"]
        found = read_account(rows)
        if found.problems:
            raise InputError(
                f"{self.path}: {found.problems[0]}; the account of what was spent cannot be "
                "trusted: restore the file from a backup"
            )
        if found.opening | given != found.opening:
            raise InputError(
                f"{self.path} was opened for ε = {found.opening.get('budget')} at "
                f"δ = {found.opening.get('delta')}; what was promised cannot be changed: "
                "leave budget out, or name another population"
            )
        return found.opening["budget"], found.opening["delta"]

    def _connect(self) -> sqlite3.Connection:
        return hash_chain.open_to_write(self.path, wait=_WAIT, alone=False)

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """Read what other runs have paid since the last look."""
        known = len(self._heads) - 1
        rows = hash_chain.rows_after(connection, known)
        heads, problem = hash_chain.follow(rows, self._heads)
        if problem:
            raise InputError(f"{self.path}: {problem}; restore the file from a backup")
        paid = rows[1:] if known == 0 else rows  # the first entry is the opening
        self._entries |= {msgspec.json.decode(row[1], type=Entry) for row in paid}
        self._heads = heads

    def _spent(self) -> Counter[RoundEvent]:
        return Counter(entry.event for entry in self._entries)

    def _require_cover(self, event: RoundEvent) -> None:
        spent = self._spent()
        other = next((e for e in spent if e.sampler.relation != event.sampler.relation), None)
        if other is not None:
            raise InputError(
                f"{self.path} holds rounds under {other.sampler.relation}, and this one is under "
                f"{event.sampler.relation}; the two are different promises and have no common ε: "
                "use one sampler for all runs of a population"
            )
        # More rounds never cost less, so what a larger number stays within covers a smaller one:
        # looking ahead saves composing anew in every round.
        if spent + Counter([event]) <= self._covered:
            return
        for ahead in (64, 8, 1):
            wanted = spent + Counter({event: ahead})
            if epsilon(list(wanted.items()), self.delta) <= self.budget:
                self._covered = wanted
                return
        raise BudgetExhausted(
            f"privacy budget of the population exhausted: its runs have paid for "
            f"{spent.total()} rounds, ε = {epsilon(list(spent.items()), self.delta):.4g} of "
            f"{self.budget:.4g} at δ = {self.delta:.3g} ({self.path}), and another would be too "
            "much; nothing more was released and the last model stands"
        )


class JointLedger:
    """A run's own ledger and its population's: a release is paid for in both before it is made."""

    def __init__(self, own: SqliteLedger, population: Population) -> None:
        self.own, self.population = own, population

    def spend(self, event: RoundEvent, round_: int, nonce: str) -> None:
        """Pay both, the population first, or raise BudgetExhausted and leave no trace.

        Whatever stops the process between the two has released nothing, and the population holds
        at least what its runs do. The same nonce again pays only where it has not yet been paid.
        """
        if Entry(round_, event, nonce) not in self.own.entries:
            self.own.check(event)
        self.population.spend(event, round_, self._name(nonce))
        self.own.spend(event, round_, nonce)

    def check(self, event: RoundEvent) -> None:
        """Refuse another such round if one of the two budgets does not cover it."""
        self.own.check(event)
        self.population.check(event)

    def epsilon(self) -> float:
        """What this run has spent."""
        return self.own.epsilon()

    def _name(self, nonce: str) -> str:
        return payment_name(self.own.run, nonce)


def payment_name(run: str, nonce: str) -> str:
    """What a population calls a run's payment.

    Two simulations may share a seed, and so their nonces, but not what they released.
    """
    return f"{run} {nonce}"


def unpaid_problems(path: Path, own: Account) -> list[str]:
    """What a run's ledger holds that the population's account at ``path`` does not."""
    shared = read_ledger(path)
    if shared.problems:
        return [f"the population's account {path}: {text}" for text in shared.problems]
    if not shared.opening.get("population"):
        return [f"{path} is not the account of a population"]
    missing = _unpaid(str(own.opening.get("run", "")), own.entries, set(shared.entries))
    return [f"round {t} was not paid into the population {path.stem}" for t in missing[:1]]


def _unpaid(run: str, own: Iterable[Entry], shared: set[Entry]) -> list[int]:
    """The rounds of a run, counted from 1, that a population's payments do not hold."""
    return [
        entry.round + 1
        for entry in own
        if msgspec.structs.replace(entry, nonce=payment_name(run, entry.nonce)) not in shared
    ]


def account_path(population: str) -> Path:
    """Where a population's account is kept: one path, so that one name is never two accounts."""
    path = Path(population)
    if not path.is_absolute() or path.suffix != ".sqlite":
        shown = Path.cwd() / "populations" / f"{path.stem or 'people'}.sqlite"
        raise InputError(
            f"population = {population!r} is not the full path of an account, a file that all runs "
            f'on the same people share; give one such as "{shown}"'
        )
    return path
