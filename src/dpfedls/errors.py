"""What can go wrong for a person using dpfedls, and small checks that say it well."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real


class InputError(ValueError):
    """Wrong input: the message says what, where, why it matters and how to fix it. Exit code 2."""


class BudgetExhausted(RuntimeError):
    """The privacy budget does not cover another round; nothing was released. Exit code 3."""


class Stopped(RuntimeError):
    """A person stopped a run; the message says how to go on with it. Exit code 1."""


class RankLost(RuntimeError):
    """A process that shared the work stopped answering; the run can go on. Exit code 1."""


def require_positive(name: str, value: float, why: str) -> None:
    """Refuse zero, negative numbers and NaN (infinity passes)."""
    if not value > 0:
        raise InputError(f"{name} must be > 0, got {value:g}; {why}")


def require_finite(name: str, value: float, why: str) -> None:
    """Refuse zero, negative numbers, NaN and infinity."""
    if not 0 < value < math.inf:
        raise InputError(f"{name} must be a finite number > 0, got {value:g}; {why}")


def require_fraction(name: str, value: float, why: str) -> None:
    """Refuse what is not in (0, 1]."""
    if not 0 < value <= 1:
        raise InputError(f"{name} must be in (0, 1], got {value:g}; {why}")


def require_share(name: str, value: float, why: str) -> None:
    """Refuse what is not in [0, 1]."""
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be in [0, 1], got {value:g}; {why}")


def require_not_negative(name: str, value: float, why: str) -> None:
    """Refuse negative numbers, NaN, infinity and what is no number."""
    number = isinstance(value, Real)
    if not (number and value >= 0 and math.isfinite(value)):
        said = f"{value:g}" if number else repr(value)
        raise InputError(f"{name} must be a finite number >= 0, got {said}; {why}")


def unknown(what: str, name: str, known: Iterable[str], remedy: str = "") -> InputError:
    """An unknown name, with the remedy given or else the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(known)
    return InputError(f"unknown {what} {name!r}; {remedy or guess}")
