"""Replies that no honest node sends: each is refused, or moves the sum by at most its bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from dpfedls.clipping import Bound
from dpfedls.flower.replies import (
    STYPE,
    Refused,
    Request,
    make_census,
    make_reply,
    read_census,
    read_metrics,
    read_update,
)
from dpfedls.parameters import Layout
from torture.outcome import Outcome
from torture.process import forked, limit_memory

NODE, ROUND, PEOPLE, NORM = 7, 3, 2, 0.5
LAYOUT = Layout.of(nn.Linear(20, 5))
_MEMORY = 2**28  # bytes that reading replies may take beyond what the process has

Spoil = Callable[[RecordDict, random.Random], object]


def replies(cases: int, seed: int) -> Outcome:
    """Every class several times, with numbers drawn anew, in a process that may take little."""
    found = Outcome(note=f"{len(SPOILS)} classes, memory bound to {_MEMORY >> 20} MB more")
    problems = forked(lambda: _all(cases, seed), limit=1800)
    found.cases = max(1, cases // len(SPOILS)) * len(SPOILS)
    found.violations += problems.out.splitlines()
    if problems.code:
        found.violations.append(f"reading replies failed: {problems.err[-300:]}")
    return found


def _all(cases: int, seed: int) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    rng = random.Random(seed)
    limit_memory(_MEMORY)
    for _ in range(max(1, cases // len(SPOILS))):
        for name, spoil in SPOILS.items():
            for indicator in (0.0, 0.7):
                problem = _problem(spoil, rng, Bound(NORM, indicator, 0.5))
                if problem:
                    print(f"{name}: {problem}")


def _problem(spoil: Spoil, rng: random.Random, bound: Bound) -> str | None:
    dim = LAYOUT.dim + bool(bound.indicator)
    values = torch.tensor([rng.gauss(0, 1) for _ in range(dim)], dtype=torch.float64)
    honest = 0.1 * values / values.norm()
    content = make_reply(honest, LAYOUT, ROUND)
    question = Message(RecordDict(), dst_node_id=NODE, message_type="train")
    spoilt = spoil(content, rng)
    payload = spoilt if isinstance(spoilt, RecordDict | Error) else content
    reply = Message(payload, reply_to=question)
    reply.metadata.__dict__["_src_node_id"] = spoilt if isinstance(spoilt, int) else NODE
    reading = (
        lambda: read_update(reply, Request(NODE, ROUND, PEOPLE), LAYOUT, bound),
        lambda: read_census(reply, NODE, 50),
        lambda: read_metrics(reply),
    )
    for read in reading:
        try:
            made = read()
        except Refused as refused:
            if read is reading[0] and spoil is SPOILS["honest"]:
                return f"an honest reply is refused: {refused}"
            if "\n" in str(refused) or len(str(refused)) > 400:
                return "the refusal is not one short line"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        else:
            if isinstance(made, torch.Tensor) and not within(made, bound):
                return f"it moves the sum by {float(made.norm()):.4g}"
    return None


def within(total: torch.Tensor, bound: Bound) -> bool:
    """Whether a sum is what the people of the request may add at the most."""
    update, rest = total[: LAYOUT.dim], total[LAYOUT.dim :]
    most = PEOPLE * bound.indicator * max(bound.quantile, 1 - bound.quantile)
    return bool(
        torch.isfinite(total).all()
        and float(update.norm()) <= PEOPLE * bound.norm
        and all(abs(float(value)) <= most for value in rest)
    )


def _array(change: Callable[[Array, random.Random], None]) -> Spoil:
    return lambda content, rng: change(content["update"]["weight"], rng)  # type: ignore[index]


def _numbers(value: Callable[[random.Random], float]) -> Spoil:
    def spoil(array: Array, rng: random.Random) -> None:
        numbers = np.frombuffer(array.data, "<f8").copy()
        numbers[rng.randrange(len(numbers))] = value(rng)
        array.data = numbers.tobytes()

    return _array(spoil)


def _field(name: str, value: Callable[[random.Random], object]) -> Spoil:
    return _array(lambda array, rng: setattr(array, name, value(rng)))


def _about(**values: object) -> Spoil:
    def spoil(content: RecordDict, rng: random.Random) -> None:
        kept = {k: v for k, v in (*content["about"].items(), *values.items()) if v is not None}  # type: ignore[union-attr]
        content["about"] = ConfigRecord(
            {k: v for k, v in kept.items() if k not in values or values[k] is not None}
        )

    return spoil


def _records(change: Callable[[RecordDict, random.Random], object]) -> Spoil:
    return change


def _scaled(content: RecordDict, factor: float) -> None:
    for array in content["update"].values():  # type: ignore[union-attr]
        array.data = (np.frombuffer(array.data, "<f8") * factor).tobytes()


def _flipped(array: Array, rng: random.Random) -> None:
    raw = bytearray(array.data)
    for _ in range(rng.randint(1, 8)):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    array.data = bytes(raw)


SPOILS: dict[str, Spoil] = {
    "honest": _records(lambda content, rng: None),
    "not a number": _numbers(lambda rng: math.nan),
    "infinity": _numbers(lambda rng: math.inf),
    "minus infinity": _numbers(lambda rng: -math.inf),
    "a norm that overflows": _numbers(lambda rng: 1.7e308),
    "a huge number": _numbers(lambda rng: rng.uniform(1, 1e300)),
    "a denormal": _numbers(lambda rng: 5e-324),
    "a hair above the bound": lambda content, rng: _scaled(content, PEOPLE * NORM / 0.1 * 1.00001),
    "within rounding of the bound": lambda content, rng: _scaled(content, PEOPLE * NORM / 0.1),
    "scaled at random": lambda content, rng: _scaled(content, 10 ** rng.uniform(-10, 200)),
    "bits flipped": _array(_flipped),
    "no bytes": _field("data", lambda rng: b""),
    "too few bytes": _field("data", lambda rng: bytes(8 * rng.randrange(100))),
    "too many bytes": _field("data", lambda rng: bytes(800 + 8 * rng.randint(1, 10**5))),
    "an odd number of bytes": _field("data", lambda rng: bytes(799)),
    "another shape": _field("shape", lambda rng: (5 * 20,)),
    "a giant shape": _field("shape", lambda rng: (10**12,)),
    "a negative shape": _field("shape", lambda rng: (-5, -20)),
    "a shape of strings": _field("shape", lambda rng: ("5", "20")),
    "an object dtype": _field("dtype", lambda rng: "O"),
    "an unknown dtype": _field("dtype", lambda rng: "float16" * rng.randint(1, 10**5)),
    "integers": _field("dtype", lambda rng: "int64"),
    "float32 of half the length": _field("dtype", lambda rng: "float32"),
    "NumPy's own format": _field("stype", lambda rng: "numpy.ndarray"),
    "a pickle": _array(
        lambda array, rng: array.__dict__.update(stype=STYPE, data=b"cos\nsystem\n(S'true'\ntR.")
    ),
    "another round": _about(round=ROUND + 1),
    "a round that is text": _about(round="3"),
    "a round that is a fraction": _about(round=3.0),
    "more than was asked": _about(secret="x" * 1000),
    "an indicator beyond its bound": _about(inside=1e9),
    "an indicator that is no number": _about(inside=math.nan),
    "a tensor missing": lambda content, rng: content["update"].pop("bias"),  # type: ignore[union-attr]
    "a tensor more": lambda content, rng: content["update"].__setitem__(  # type: ignore[union-attr]
        "more\n<script>", Array("float64", (1,), STYPE, bytes(8))
    ),
    "no update": lambda content, rng: content.pop("update"),
    "metrics instead of arrays": lambda content, rng: content.__setitem__(
        "update", MetricRecord({"samples": 1.0})
    ),
    "an empty record of arrays": lambda content, rng: content.__setitem__("update", ArrayRecord()),
    "nothing": lambda content, rng: RecordDict(),
    "an error with terminal codes": lambda content, rng: Error(0, "\x1b[2J" * 100),
    "another node": lambda content, rng: rng.choice((0, 8, 2**63)),
    "people twice": lambda content, rng: make_census(np.array([1, 1])),
    "people outside": lambda content, rng: make_census(np.array([-1, 10**18])),
    "a census of millions": lambda content, rng: make_census(np.arange(10**6)),
    "metrics that are not finite": lambda content, rng: RecordDict(
        {"metrics": MetricRecord({"samples": math.inf, "loss": math.nan})}
    ),
    "fewer than no samples": lambda content, rng: RecordDict(
        {"metrics": MetricRecord({"samples": -1.0})}
    ),
}
