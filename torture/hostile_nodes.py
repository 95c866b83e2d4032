"""What a hostile node of a real federation does, another thing each time that it is asked.

Besides, it claims to hold everybody, and so does a stranger whose key the roster does not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from torture.folders import PEOPLE

HOSTILE, STRANGER, NODES = 0, 3, 4

# What node 0 makes of its honest reply. ``reply``, ``message``, ``time`` … are there.
ACTS = {
    "a sum a million times its bound": "scale(reply, 1e6)",
    "a sum a hair above its bound": "scale(reply, 1.001 * bound / norm(reply))",
    "not a number": "scale(reply, math.nan)",
    "infinity": "scale(reply, math.inf)",
    "another shape": "array(reply).shape = (64, 4)",
    "a header that asks for terabytes": "header(reply)",
    "another round": "reply.content['about']['round'] = 99",
    "more than was asked": "reply.content['about']['secret'] = 'x' * 10**6",
    "too slow": "time.sleep(9)",
    "dead on the way": "os._exit(1)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "a flood of tensors": "flood(reply, 300, 10**5)",
    "one tensor of a hundred megabytes": "flood(reply, 1, 10**8)",
    "terminal codes in an error": "raise RuntimeError('\\x1b[2J' * 1000)",
    "no records": "reply.content.clear()",
    "an update and nothing about it": "reply.content.pop('about')",
    "bytes that are too few": "array(reply).data = b''",
    "integers": "array(reply).dtype = 'int64'",
    "metrics": "reply.content['metrics'] = MetricRecord({'loss': 1.0})",
    "silence until killed": "time.sleep(9); os.kill(os.getpid(), signal.SIGKILL)",
}

CLIENT = f"""
import io, json, math, os, signal, time
import numpy as np
from flwr.app import Array, MetricRecord
from flwr.clientapp import ClientApp
from dpfedls.flower.replies import make_census

ACTS = {list(ACTS.items())!r}
honest, app = app, ClientApp()

@app.query()
def census(message, context):
    reply = honest(message, context)
    if context.node_config["partition-id"] in ({HOSTILE}, {STRANGER}):
        reply.content = make_census(np.arange({PEOPLE}))
    return reply

def array(reply):
    return reply.content["update"]["weight"]

def norm(reply):
    arrays = reply.content["update"].values()
    return math.sqrt(sum((np.frombuffer(a.data, a.dtype) ** 2).sum() for a in arrays)) or 1.0

def scale(reply, factor):
    for a in reply.content["update"].values():
        a.data = (np.frombuffer(a.data, a.dtype) * factor).astype(a.dtype).tobytes()

def header(reply):
    file, shape = io.BytesIO(), (10**12,)
    values = {{"descr": "<f8", "fortran_order": False, "shape": shape}}
    np.lib.format.write_array_header_2_0(file, values)
    a = array(reply)
    a.stype, a.shape, a.data = "numpy.ndarray", shape, file.getvalue()

def flood(reply, tensors, size):
    for i in range(tensors):
        data = os.urandom(size)
        reply.content["update"][f"more {{i}}"] = Array("float64", (size // 8,), "dpfedls.raw", data)

@app.train()
def train(message, context):
    reply, ask = honest(message, context), message.content["ask"]
    with open(PLACE + "/asked.jsonl", "a") as file:
        line = {{"node": context.node_config["partition-id"], "people": list(ask["people"])}}
        file.write(json.dumps(line) + chr(10))
    if context.node_config["partition-id"] == {HOSTILE}:
        bound = ask["norm"] * len(ask["people"])
        with open(PLACE + "/acts.jsonl", "a+") as file:
            file.seek(0)
            known = [json.loads(line) for line in file]
            again = known[-1:] and known[-1]["round"] == ask["round"]  # its worker died of it
            name, act = ACTS[(len(known) - bool(again)) % len(ACTS)]
            if not again:
                file.write(json.dumps({{"round": ask["round"], "act": name}}) + chr(10))
        exec(act)
    return reply
"""

SERVER = """
import json, resource
import dpfedls.flower.strategy as strategy

read = strategy.read_update

def noted(reply, request, layout, bound):
    found = read(reply, request, layout, bound)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    line = {"round": request.round, "norm": float(found.norm())}
    line["bound"] = request.people * bound.norm
    with open(PLACE + "/accepted.jsonl", "a") as file:
        file.write(json.dumps(line | {"megabytes": used}) + chr(10))
    return found

strategy.read_update = noted
"""
_MEGABYTES = 1200  # of the server; an honest run takes half of it


def acts(place: Path) -> list[tuple[str, list[str]]]:
    """What was done, and what of it reached a round's sum beyond its bound, or much memory."""
    done, heard = (_lines(place / name) for name in ("acts.jsonl", "accepted.jsonl"))
    return [(line["act"], _problems(heard, line["round"])) for line in done]


def held(node: int) -> Sequence[int]:
    """Whom a node holds; whom the stranger holds nobody may ask for."""
    return range(node, PEOPLE, NODES)


def claims(place: Path) -> list[tuple[str, list[str]]]:
    """What came of claiming everybody: whom nodes were asked for."""
    asked: dict[int, set[int]] = {node: set() for node in range(NODES)}
    for line in _lines(place / "asked.jsonl"):
        asked[line["node"]].update(line["people"])
    allowed = {node: set() if node == STRANGER else set(held(node)) for node in range(NODES)}
    shut_out = [node for node in allowed if allowed[node] and not asked[node]]
    return [
        (
            f"node {node} claims everybody",
            [f"it was asked for {sorted(beyond)}"]
            if (beyond := asked[node] - allowed[node])
            else [],
        )
        for node in (HOSTILE, STRANGER)
    ] + [("others lose their people", [f"nodes {shut_out} were never asked"] if shut_out else [])]


def _problems(heard: list[dict[str, float]], round_: int) -> list[str]:
    problems = []
    for line in heard:
        if line["round"] != round_:
            continue
        if not math.isfinite(line["norm"]) or line["norm"] > line["bound"] * (1 + 1e-9):
            problems.append(f"a sum of norm {line['norm']:.4g}, bound {line['bound']:.4g}")
        if line["megabytes"] > _MEGABYTES:
            problems.append(f"the server took {line['megabytes']} MB")
    return problems


def _lines(path: Path) -> list[dict]:
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]
