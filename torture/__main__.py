"""``python -m torture``: every kind of failure, a table at the end, exit code 1 on a violation."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from functools import partial
from pathlib import Path

from torture import shim

shim.preload()  # this program starts anew there, so before anything that takes long to import

from torture import page, plan  # noqa: E402
from torture.outcome import HEADER, Outcome, row  # noqa: E402
from torture.together import together  # noqa: E402


def main() -> int:
    """Run the kinds asked for."""
    words = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    words.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(plan.KINDS)}")
    words.add_argument("--scale", type=float, default=1.0, help="times the cases of the long form")
    words.add_argument("--seed", type=int, default=0, help="of the random moments and places")
    words.add_argument("--write", type=Path, help="the page whose table is made anew")
    words.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    asked = words.parse_args()
    unknown = set(asked.kinds) - plan.KINDS.keys()
    if unknown:
        words.error(f"unknown kind {min(unknown)!r}; known: {', '.join(plan.KINDS)}")
    names, begun = asked.kinds or list(plan.KINDS), time.monotonic()
    outcomes: dict[str, Outcome] = {}
    with plan.prepared():
        for some, at_once in plan.order(names):
            work = partial(_timed, scale=asked.scale, seed=asked.seed)
            for name, found in together(some, work, at_once):
                outcomes[name] = found
                if asked.write:
                    page.rewrite(asked.write, {name: found})
    outcomes = {name: outcomes[name] for name in names}
    print(f"{(time.monotonic() - begun) / 60:.1f} minutes in all", file=sys.stderr)
    if asked.json:
        print(json.dumps({name: vars(found) for name, found in outcomes.items()}))
    else:
        print("\n".join([HEADER, *(row(name, found) for name, found in outcomes.items())]))
    return int(any(found.violations for found in outcomes.values()))


def _timed(name: str, scale: float, seed: int) -> Outcome:
    kind, cases = plan.KINDS[name]
    begun = time.monotonic()
    try:
        found = kind(max(1, round(cases * scale)), seed)
    except Exception as error:  # the other kinds are still to be tried
        found = Outcome(violations=[f"it could not be tried: {type(error).__name__}: {error}"])
    found.seconds = time.monotonic() - begun
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found.cpu = sum(one.ru_utime + one.ru_stime for one in used)
    return found


if __name__ == "__main__":
    sys.exit(main())
