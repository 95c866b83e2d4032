"""What an item's earlier file holds, beside the runs that are there.

Machines are given back and run folders are lost with them, while ITEM.json stays: with --finished a
cell, and a seed of a cell, that has no folder keeps the numbers that it has there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from dpfedls.errors import InputError
from dpfedls.paper.cells import Run
from dpfedls.paper.figures.lines import data_of
from dpfedls.paper.item import Options, trained_with

Facts = dict[str, Any]
Key = tuple[Any, ...]

_KEYS = {"seeds", "made_by", "training_seconds", "runs", "title"}  # of a file of runs


@dataclass(frozen=True)
class Earlier:
    """An item's earlier file."""

    path: Path
    facts: Facts
    held: frozenset[Path]  # folders of runs whose numbers it has too


@dataclass(frozen=True)
class Record:
    """All lines of an item, those of the runs and those of the earlier file."""

    lines: list[Facts]
    runs: list[list[Run]]  # that are there, a row a line
    earlier: Earlier | None

    def title(self, words: str) -> str:
        """The words with $data, what the runs were trained on; without runs the earlier title."""
        if not self.runs and self.earlier:
            return self.earlier.facts["title"]
        title = Template(words).substitute(data=data_of(self.runs))
        if self.earlier and title != self.earlier.facts["title"]:
            raise InputError(
                f"{self.earlier.path} has title {self.earlier.facts['title']!r}, the runs beside "
                f"it ask for {title!r}: numbers of different data do not belong together; give "
                "each an --out of its own"
            )
        return title


def lines_of(facts: Facts) -> list[Facts]:
    """The lines of a figure's file. Before they named their seeds, these were the first ones."""
    return [
        {**line, "seeds": line.get("seeds") or _first_seeds(line)}
        for line in facts["data"]["lines"]
    ]


def record(
    item: str,
    options: Options,
    found: Sequence[tuple[Facts, list[Run]]],
    *,
    labels: Sequence[str],
    by_seed: Sequence[str],
    places: Sequence[Key] | None = None,
    read: Callable[[Facts], list[Facts]] = lines_of,
    compared: bool = True,
) -> Record:
    """Merge the lines of the runs that were found with those that the earlier file has.

    Lines are the same if their ``labels`` are; ``by_seed`` names what has one entry a seed, in the
    order of ``seeds``. Lines that are ``compared`` by round were evaluated in the same rounds.
    Guarantees: a run that is there wins over the file, nothing else in the file is lost, and lines
    stand in the order of ``places``, sorted without.
    """
    new = {_key(line, labels): line for line, _ in found}
    path = options.out / f"{item}.json"
    facts = _read(path, options) if options.finished and path.is_file() else None
    old = {} if facts is None else _lines(path, facts, read, labels, by_seed)
    order = sorted({*old, *new}) if places is None else [p for p in places if p in old or p in new]
    if strange := old.keys() - set(order):
        raise InputError(
            f"{path} has a cell {next(iter(strange))} that {item} has not; it would be lost, so "
            "take it out of the file or give another --out"
        )
    lines = [_joined(old.get(key), new.get(key), by_seed) for key in order]
    if not lines:
        raise InputError(
            f"{options.out}/runs holds no finished run of {item}, and {path} is not there; leave "
            "--finished out to make some"
        )
    runs = [own for _, own in found]
    if facts is None:
        return Record(lines, runs, None)
    if compared:
        _check_rounds(path, [part[key] for part in (old, new) for key in order if key in part])
    known = {(key, seed) for key, line in old.items() for seed in line["seeds"]}
    held = (r for x, own in found for r in own if (_key(x, labels), r.summary["seed"]) in known)
    earlier = Earlier(path, facts, frozenset(run.folder for run in held))
    return Record(lines, runs, earlier)


def _read(path: Path, options: Options) -> Facts:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        made = facts["settings"]
        whole = facts["item"] == path.stem and facts.keys() >= _KEYS
    except (ValueError, KeyError, TypeError) as error:
        raise _not_ours(path) from error
    if not whole:
        raise _not_ours(path)
    if trained_with(made) != trained_with(options.settings):
        raise InputError(
            f"{path} was made {_laid(made)} and this call {_laid(options.settings)}: numbers of "
            "different settings do not belong together; give the same or another --out"
        )
    return facts


def _lines(
    path: Path,
    facts: Facts,
    read: Callable[[Facts], list[Facts]],
    labels: Sequence[str],
    by_seed: Sequence[str],
) -> dict[Key, Facts]:
    try:
        lines = {_key(line, labels): line for line in read(facts)}
        whole = all(len(x[name]) == len(x["seeds"]) for x in lines.values() for name in by_seed)
    except InputError:  # which says more
        raise
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise _not_ours(path) from error
    if not whole:
        raise _not_ours(path)
    return lines


def _joined(old: Facts | None, new: Facts | None, by_seed: Sequence[str]) -> Facts:
    if old is None or new is None:
        return {**(old or new or {})}
    seeds = sorted({*old["seeds"], *new["seeds"]})
    both = {**old, **new, "seeds": seeds}
    for name in by_seed:
        values = {
            s: v for line in (old, new) for s, v in zip(line["seeds"], line[name], strict=True)
        }
        both[name] = [values[seed] for seed in seeds]
    return both


def _check_rounds(path: Path, lines: list[Facts]) -> None:
    evaluated = [line["rounds"] for line in lines if "rounds" in line]
    if any(rounds != evaluated[0] for rounds in evaluated):
        raise InputError(
            f"{path} and the runs beside it were not evaluated in the same rounds, so that their "
            "curves cannot be averaged or compared; give each an --out of its own"
        )


def _key(line: Facts, labels: Sequence[str]) -> Key:
    return tuple(line[name] for name in labels)


def _first_seeds(line: Facts) -> list[int]:
    """As many as a quantity by seed and round has rows."""
    tables = (x for x in line.values() if isinstance(x, list) and isinstance(x[0], list))
    return [*range(len(next(tables)))]


def _laid(settings: Sequence[str]) -> str:
    given = shlex.join(word for setting in settings for word in ("--set", setting))
    return f"with {given}" if given else "without --set"


def _not_ours(path: Path) -> InputError:
    return InputError(
        f"{path} is not what dpfedls reproduce {path.stem} writes, so its numbers cannot be kept; "
        "copy it anew or move it away"
    )
