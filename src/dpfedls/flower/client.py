"""A node's side: train the people asked for, clip each, send their sum and nothing else."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from dpfedls.clipping import Bound
from dpfedls.engine import Engine, choose
from dpfedls.errors import InputError
from dpfedls.flower.replies import make_census, make_reply, unpack
from dpfedls.local_sgd import LocalUpdate, Loss, cross_entropy
from dpfedls.metrics import accuracy, evaluate
from dpfedls.parameters import Layout, Updates, Vector
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.clients import ClientData
from dpfedls.runs.recipe import Recipe
from dpfedls.sampling import Indices

log = logging.getLogger("dpfedls")
Samples: TypeAlias = tuple[Tensor, Tensor]
LoadPeople: TypeAlias = Callable[[Context], Mapping[int, Samples]]
"""``people(context)`` gives this node's people: number in the population → samples."""


def client_app(
    recipe: Recipe,
    *,
    model: nn.Module | Callable[[], nn.Module],
    people: LoadPeople,
    loss: Loss = cross_entropy,
    unprotected_client_metrics: bool = False,
) -> ClientApp:
    """A Flower ClientApp for the nodes of a federation that runs the recipe.

    A node may hold one person's data or many people's: those sampled are trained as one block,
    each clipped, and only their sum leaves. ``unprotected_client_metrics=True`` also lets
    accuracy and loss on its people's data leave, without noise and outside every guarantee.
    """
    app = ClientApp()

    def node(context: Context) -> Node:
        made = model if isinstance(model, nn.Module) else model()
        return Node.of(recipe, made, people(context), loss)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        with _silent_failure("say whom it holds"):
            numbers = np.array(sorted(people(context)), dtype=np.int64)
            return Message(make_census(numbers), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with _silent_failure("train"):
            return Message(node(context).train(message.content), reply_to=message)

    if unprotected_client_metrics:

        @app.evaluate()
        def judge(message: Message, context: Context) -> Message:
            with _silent_failure("evaluate"):
                return Message(node(context).evaluate(message.content), reply_to=message)

    return app


@dataclass(frozen=True)
class Node:
    """One node's people and how they train: the simulation's own code on a part of its data."""

    recipe: Recipe
    model: nn.Module
    layout: Layout
    data: ClientData  # of the whole population, everybody elsewhere with no samples
    here: frozenset[int]
    loss: Loss

    @classmethod
    def of(
        cls, recipe: Recipe, model: nn.Module, people: Mapping[int, Samples], loss: Loss
    ) -> Node:
        """The node that holds these people."""
        check_model(model)
        device = torch.device(recipe.device)
        model = copy.deepcopy(model).to(device)
        data = _scattered(people, recipe.plan.num_clients).to(device)
        return cls(recipe, model, Layout.of(model), data, frozenset(people), loss)

    def train(self, asked: RecordDict) -> RecordDict:
        """The sum of the clipped updates of the people asked for."""
        round_, key, people, bound = _read_ask(asked)
        params = self._params(asked)
        fit = [j for j in people if j in self.here and self._is_fit(j)]
        if people and not fit:  # no different from a sum of zero, but somebody hears of it
            raise InputError("nobody asked for can be trained here; the lines above say why")
        people = np.array(fit, dtype=np.int64)
        total = self._engine.clipped_total(params, people, round_, key, bound)
        # One person's update is float32 and travels as such; a sum keeps its precision, so that
        # rounding cannot make one person count for more than the clip norm.
        return make_reply(total.float() if len(people) == 1 else total, self.layout, round_)

    def evaluate(self, asked: RecordDict) -> RecordDict:
        """Accuracy and loss over all samples here: un-noised, for those who asked for that."""
        self.layout.write(self._params(asked), self.model)
        samples = (self.data.features, self.data.targets)
        metrics = {"accuracy": accuracy} if self.loss is cross_entropy else {}
        found = evaluate(self.model, samples, self.loss, metrics)
        return RecordDict({"metrics": MetricRecord({**found, "samples": len(samples[1])})})

    def _params(self, asked: RecordDict) -> Vector:
        return unpack(asked.get("model"), self.layout).float().to(self.recipe.device)

    @cached_property
    def _engine(self) -> Engine:
        """The simulation's own, but whoever's samples cannot be trained on gets zeros, alone."""
        recipe = self.recipe
        made = choose(self.model, self.data, recipe.local, self.loss, block_size=recipe.block_size)
        return replace(made, update=_Forgiving(made.update))

    def _is_fit(self, person: int) -> bool:
        if self.data.sizes[person] == 0:
            return True
        try:
            check_samples(self.model, self.data.client(person), f"person {person}", self.loss)
        except Exception as error:
            log.warning("%s; that person counts as zero", error)
            return False
        return True


@dataclass(frozen=True)
class _Forgiving:
    """One person's data must never decide whether another's counts.

    That would let one move the sum by more than the clip norm.
    """

    inner: LocalUpdate

    def __call__(
        self, params: Vector, clients: Indices, round_: int, key: int, radius: float
    ) -> Updates:
        try:
            return self.inner(params, clients, round_, key, radius)
        except Exception:
            if len(clients) == 1:
                log.exception("person %d could not be trained and counts as zero", clients[0])
                return torch.zeros(1, len(params), device=params.device)
        each = (clients[[i]] for i in range(len(clients)))
        return torch.cat([self(params, one, round_, key, radius) for one in each])


def make_ask(
    round_: int, key: int, people: Indices, params: ArrayRecord, bound: Bound
) -> RecordDict:
    """What the server asks of a node: train these people from this model, within this bound."""
    ask = {"round": round_, "key": f"{key:016x}", "people": people.tolist()}
    ask |= {"norm": bound.norm, "indicator": bound.indicator}
    return RecordDict({"ask": ConfigRecord(ask), "model": params})


def _read_ask(asked: RecordDict) -> tuple[int, int, list[int], Bound]:
    ask = asked["ask"]
    round_, key, people = ask["round"], ask["key"], ask["people"]
    assert isinstance(round_, int)
    assert isinstance(key, str)
    assert isinstance(people, list)
    bound = Bound(float(ask["norm"]), float(ask["indicator"]))  # pyright: ignore[reportArgumentType]
    return round_, int(key, 16), [int(j) for j in people], bound


def _scattered(people: Mapping[int, Samples], num_clients: int) -> ClientData:
    """The people here, under the numbers they have in the population."""
    if not people:
        raise InputError("this node holds nobody; give its people(context) at least one person")
    numbers = np.array(sorted(people), dtype=np.int64)
    if numbers[0] < 0 or numbers[-1] >= num_clients:
        raise InputError(
            f"this node holds people {numbers[0]} to {numbers[-1]}, but the plan counts "
            f"{num_clients}, numbered from 0; make the two agree"
        )
    packed = ClientData.from_pairs(_alike([people[int(j)] for j in numbers]))
    starts, sizes = np.zeros((2, num_clients), dtype=np.int64)
    starts[numbers], sizes[numbers] = packed.starts, packed.sizes
    return replace(packed, starts=starts, sizes=sizes)


def _alike(pairs: list[Samples]) -> list[Samples]:
    """The samples of each; none for whoever's are unlike most people's: one model reads all."""
    kinds = [(x.shape[1:], x.dtype, y.shape[1:], y.dtype, len(x) == len(y)) for x, y in pairs]
    usual = Counter(kinds).most_common(1)[0][0]
    example = pairs[kinds.index(usual)]
    empty = (example[0][:0], example[1][:0])
    return [pair if kind == usual else empty for pair, kind in zip(pairs, kinds, strict=True)]


@contextmanager
def _silent_failure(what: str) -> Iterator[None]:
    """Flower sends an exception's text to the server, and text made from data is data."""
    try:
        yield
    except Exception:
        log.exception("this node could not %s", what)
        raise RuntimeError(f"the node could not {what}; its own log says why") from None
