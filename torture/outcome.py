"""What one kind of failure came to, and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Cases that were tried, and what broke, in words."""

    cases: int = 0
    violations: list[str] = field(default_factory=list)
    note: str = ""  # what the figures do not say
    seconds: float = 0.0
    cpu: float = 0.0  # seconds that this kind's own processes worked

    def add(self, case: str, problems: Iterable[str]) -> None:
        """Count a case, and name it before each of its problems."""
        self.cases += 1
        self.violations += [f"{case}: {problem}" for problem in problems]


Kind = Callable[[int, int], Outcome]
"""``kind(cases, seed)`` tries about that many cases."""

HEADER = (
    "| kind | cases | violations | seconds | CPU seconds | what was tried |\n"
    "|---|---:|---:|---:|---:|---|"
)


def row(name: str, found: Outcome) -> str:
    """A line of the table."""
    return (
        f"| {name} | {found.cases:,} | {len(found.violations)} | {found.seconds:.0f} "
        f"| {found.cpu:.0f} | {found.note} |"
    )
