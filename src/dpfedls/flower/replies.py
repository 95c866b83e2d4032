"""Nothing that a node sends is used before it is checked: header first, then bytes, then values.

Vectors travel as raw little-endian numbers whose type, shape and length the receiver knows
beforehand. There is no header to believe, nothing to unpickle, and nothing is allocated that the
bytes already received do not fill.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from dpfedls.clipping import Bound, clip
from dpfedls.parameters import Layout, Total, Vector
from dpfedls.sampling import Indices

STYPE = "dpfedls.raw"  # Flower's name for how an Array's bytes are to be read
_DTYPES = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_ROUNDING = 1e-6  # a node may measure its norm in another order; more than that is no rounding


class Refused(Exception):
    """Why a reply counts as zero."""


@dataclass(frozen=True)
class Request:
    """What a node was asked, and so what its reply must be."""

    node: int
    round: int
    people: int  # how many of its people were sampled


def pack(vector: Vector, layout: Layout) -> ArrayRecord:
    """A vector as named tensors for the wire, in the precision it has."""
    arrays = {}
    for name, tensor in layout.split(vector.detach().cpu()).items():
        values = tensor.contiguous().numpy()
        raw = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        arrays[name] = Array(str(values.dtype), tuple(tensor.shape), STYPE, raw)
    return ArrayRecord(arrays)


def unpack(record: object, layout: Layout) -> Vector:
    """The vector that ``pack`` took apart; Refused if anything is not as the layout says."""
    if not isinstance(record, ArrayRecord):
        raise Refused("it holds no array record where one belongs")
    if set(record.keys()) != set(layout.names):
        raise Refused(f"it has {len(record)} tensors of which some have other names than ours")
    dtypes = {_header(record[n], n, s) for n, s in zip(layout.names, layout.shapes, strict=True)}
    if len(dtypes) != 1:
        raise Refused("its tensors are not all of one dtype")
    dtype = _DTYPES[dtypes.pop()]
    pieces = [np.frombuffer(record[name].data, dtype=dtype) for name in layout.names]
    return torch.from_numpy(np.concatenate(pieces).astype(dtype.newbyteorder("="), copy=False))


def _header(array: Array, name: str, shape: tuple[int, ...]) -> str:
    """The dtype of an array of which everything but the values has been checked."""
    if not isinstance(array, Array) or array.stype != STYPE:
        raise Refused(f"tensor {name!r} is not sent as raw numbers")
    if array.dtype not in _DTYPES:
        raise Refused(f"tensor {name!r} has dtype {array.dtype!r:.40}")
    if tuple(array.shape) != shape:
        raise Refused(f"tensor {name!r} has shape {tuple(array.shape)!r:.60}, ours {shape}")
    wanted = _DTYPES[array.dtype].itemsize * math.prod(shape)
    if len(array.data) != wanted:
        raise Refused(f"tensor {name!r} has {len(array.data)} bytes instead of {wanted}")
    return array.dtype


def make_reply(
    total: Total, layout: Layout, round_: int, dtype: torch.dtype = torch.float64
) -> RecordDict:
    """What a node answers: the sum of its people's contributions, the round, nothing else.

    ``dtype`` is that of the update on the wire. Where the clip norm adapts, the total has one
    coordinate more (see ``clipping.Bound``).
    """
    about: dict[str, int | float] = {"round": round_}
    if len(total) > layout.dim:
        about["inside"] = float(total[layout.dim])
    update = pack(total[: layout.dim].to(dtype), layout)
    return RecordDict({"update": update, "about": ConfigRecord(about)})  # pyright: ignore[reportArgumentType]


def read_update(reply: Message, request: Request, layout: Layout, bound: Bound) -> Total:
    """The sum in a reply, in float64, within the bound; Refused with the cause otherwise.

    Guarantees: finite; the update of norm at most ``request.people`` · ``bound.norm`` in float64,
    the indicator at most ``request.people`` times what one person may add.
    """
    content = _content(reply, request)
    if set(content.keys()) != {"update", "about"}:
        raise Refused(f"it has records {sorted(map(str, content.keys()))!r:.80}")
    about = content["about"]
    wanted = {"round", "inside"} if bound.indicator else {"round"}
    if not isinstance(about, ConfigRecord) or set(about.keys()) != wanted:
        raise Refused(f"it does not say its {' and '.join(sorted(wanted))} and nothing else")
    if type(about["round"]) is not int or about["round"] != request.round:
        raise Refused(f"it is of round {about['round']!r:.20}, not {request.round}")
    update = _bounded(unpack(content["update"], layout).double(), request.people * bound.norm)
    if not bound.indicator:
        return update
    inside, share = about["inside"], max(bound.quantile, 1 - bound.quantile)
    most = request.people * bound.indicator * share
    if not isinstance(inside, float) or not abs(inside) <= most * (1 + _ROUNDING):
        raise Refused(f"its count of people who say yes, {inside!r:.20}, is out of bounds")
    return torch.cat([update, update.new_tensor([min(max(inside, -most), most)])])


def _content(reply: Message, request: Request) -> RecordDict:
    if reply.metadata.src_node_id != request.node:
        raise Refused(f"it comes from node {reply.metadata.src_node_id}")
    if reply.has_error():
        # The reason is free text made from somebody's data, so it is not repeated here.
        raise Refused(f"the node reported error {reply.error.code}; its own log says why")
    if not reply.has_content() or not isinstance(reply.content, RecordDict):
        raise Refused("it is empty")
    return reply.content


def _bounded(update: Vector, bound: float) -> Vector:
    length = float(torch.linalg.vector_norm(update))
    if not math.isfinite(length):
        raise Refused("it has NaN, an infinity or an overflowing norm")
    if length > bound * (1 + _ROUNDING):
        raise Refused(f"its norm is {length:.4g}, but the bound is {bound:.4g}")
    return clip(update[None], bound)[0]


def read_metrics(reply: Message) -> dict[str, float]:
    """Finite numbers by name, ``samples`` among them, or Refused."""
    record = _content(reply, Request(reply.metadata.src_node_id, 0, 0)).get("metrics")
    if not isinstance(record, MetricRecord) or "samples" not in record:
        raise Refused("it holds no metrics and on how many samples")
    found = {k: float(v) for k, v in record.items() if isinstance(v, int | float)}
    if len(found) < len(record) or not all(map(math.isfinite, found.values())):
        raise Refused("its metrics are not finite numbers")
    if found["samples"] < 0:
        raise Refused("it counts fewer than no samples")
    return found


def make_census(people: Indices) -> RecordDict:
    """What a node answers when asked whom it holds: their numbers in the population."""
    raw = np.asarray(people, dtype="<i8").tobytes()
    return RecordDict({"about": ConfigRecord({"people": raw})})


def read_census(reply: Message, node: int, num_clients: int) -> Indices:
    """The people a node says it holds: distinct and of the population, or Refused."""
    content = _content(reply, Request(node, 0, 0))
    about = content.get("about")
    if not isinstance(about, ConfigRecord) or not isinstance(about.get("people"), bytes):
        raise Refused("it does not say whom it holds")
    raw = about["people"]
    assert isinstance(raw, bytes)
    if len(raw) % 8 or len(raw) > 8 * num_clients:
        raise Refused(f"its list of people has {len(raw)} bytes; the population is {num_clients}")
    people = np.frombuffer(raw, dtype="<i8").astype(np.int64)
    if len(people) and not 0 <= people.min() <= people.max() < num_clients:
        raise Refused(f"it names people outside the population of {num_clients}")
    if len(np.unique(people)) != len(people):
        raise Refused("it names somebody twice")
    return people
