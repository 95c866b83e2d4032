"""Record a round, change one person, play it again with the same noise, and compare.

Deterministic, so it has no false alarms: one person may move the sum by the plan's sensitivity,
and nothing else at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch

from dpfedls.audit.neighbours import Neighbours, Recorded
from dpfedls.parameters import Vector
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import SeededStreams

SLACK = 1e-9  # relative; sums are in float64
_ROUNDING = 1e-5  # relative; releases are rounded to float32


def audit_replay(plan: PrivacyPlan, seed: int = 0, rounds: int = 3) -> list[str]:
    """Problems found by replaying rounds with people of every kind; empty where all is well."""
    neighbours = Neighbours(plan)
    problems = []
    for kind, update in people(neighbours).items():
        for t in range(rounds):
            recorded, messages = zip(
                *(_watched(neighbours, update, here, t, seed) for here in (True, False)),
                strict=True,
            )
            found = differences(plan, *recorded)
            if messages[0] != messages[1]:
                found.append("the messages logged tell whether they were there")
            problems += [f"a person whose update is {kind}: {problem}" for problem in found]
    return list(dict.fromkeys(problems))


def people(neighbours: Neighbours) -> dict[str, Vector]:
    """What a person may send."""
    worst = neighbours.worst()
    return {
        "huge": worst,
        "small": worst * 1e-9,
        "zero": torch.zeros_like(worst),
        "infinite": torch.full_like(worst, torch.inf),
        "not a number": torch.full_like(worst, torch.nan),
        "partly not a number": worst.where(torch.arange(len(worst)) > 0, torch.nan),
    }


def differences(
    plan: PrivacyPlan, one: Recorded, other: Recorded, slack: float = SLACK
) -> list[str]:
    """Whatever differs between the two rounds and should not."""
    problems = []
    norm = plan.clipping.start
    moved, most = float(torch.linalg.vector_norm(one.total - other.total)), plan.sensitivity(norm)
    if not moved <= most * (1 + slack):
        problems.append(f"the sum moves by {moved:.6g}, more than {most:.6g}")
    for name, a, b in (
        ("noise level", one.release.noise_stddev, other.release.noise_stddev),
        ("shape of the release", one.release.layout, other.release.layout),
        (
            "payment",
            msgspec.json.encode(list(one.ledger.entries)),
            msgspec.json.encode(list(other.ledger.entries)),
        ),
        ("number of rounds", one.state.round, other.state.round),
    ):
        if a != b:
            problems.append(f"the {name} changes")
    # Released × public cohort − sum is the noise alone, which was frozen.
    noise = [_noise(run, plan) for run in (one, other)]
    scale = max(float(run.total.abs().max()) for run in (one, other)) + plan.noise_stddev(norm)
    if not float((noise[0] - noise[1]).abs().max()) <= _ROUNDING * scale:
        problems.append(
            "the release changes by more than the sum: noise or denominator depend on it"
        )
    return problems


def _noise(run: Recorded, plan: PrivacyPlan) -> Vector:
    dim = len(run.release.value)  # the sum may have one coordinate more, see ``Bound``
    return run.release.value.double() * plan.expected_cohort - run.total[:dim]


def _watched(
    neighbours: Neighbours, update: Vector, present: bool, round_: int, seed: int
) -> tuple[Recorded, list[str]]:
    with logged() as messages:
        streams = SeededStreams(seed)
        run = neighbours.run(update, present=present, round_=round_, streams=streams)
    return run, messages


@contextmanager
def logged() -> Iterator[list[str]]:
    """Everything the package logs meanwhile, at any level."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    log = logging.getLogger("dpfedls")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield messages
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
