"""A node's side: train the people asked for, clip each, send their sum and nothing else."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from dpfedls.clipping import Bound, clipped_sum
from dpfedls.engine.engine import first_line
from dpfedls.errors import InputError
from dpfedls.flower.person import checked, contribution
from dpfedls.flower.replies import make_census, make_reply, pack, unpack
from dpfedls.metrics import accuracy, evaluate
from dpfedls.parameters import Layout, Total, Vector
from dpfedls.people.checks import check_model
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import Samples
from dpfedls.privacy.clipping import FixedClipping
from dpfedls.privacy.observers import Nodes
from dpfedls.runs.recipe import Recipe
from dpfedls.sampling import Indices

log = logging.getLogger("dpfedls")
LoadPeople: TypeAlias = Callable[[Context], Mapping[int, Any]]
"""``people(context)`` gives this node's people: number in the population → (features, targets), or
a torch Dataset of such items. A mapping may load a person when asked for, and only then."""


def client_app(
    recipe: Recipe,
    *,
    model: nn.Module | Callable[[], nn.Module],
    people: LoadPeople,
    loss: Loss = cross_entropy,
    unprotected_client_metrics: bool = False,
) -> ClientApp:
    """A Flower ClientApp for the nodes of a federation that runs the recipe.

    A node may hold one person's data or many people's: those sampled are trained one by one,
    each clipped, and only their sum leaves. ``unprotected_client_metrics=True``, or the recipe's
    ``nodes`` saying so, also lets accuracy and loss on its people's data leave, without noise and
    outside every guarantee.
    """
    app = ClientApp()
    said = recipe.nodes or Nodes()

    kept: dict[tuple[int, int], Node] = {}

    def node(context: Context) -> Node:
        """Made once in a process, as long as it is asked for the same node of the same run."""
        key = (context.run_id, context.node_id)
        if key not in kept:
            made = model if isinstance(model, nn.Module) else model()
            found = Node.of(recipe, made, people(context), loss)
            kept.clear()
            kept[key] = found
        return kept[key]

    @app.query()
    def query(message: Message, context: Context) -> Message:
        with _silent_failure("say whom it holds"):
            numbers = np.array(sorted(people(context)), dtype=np.int64)
            return Message(make_census(numbers), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with _silent_failure("train"):
            return Message(node(context).train(message.content), reply_to=message)

    if unprotected_client_metrics or said.unprotected_client_metrics:

        @app.evaluate()
        def report(message: Message, context: Context) -> Message:
            with _silent_failure("evaluate"):
                return Message(node(context).evaluate(message.content), reply_to=message)

    return app


@dataclass(frozen=True)
class Node:
    """One node's people and how they train: the simulation's own code, person by person.

    Guarantees: nothing about one person changes another's contribution.
    """

    recipe: Recipe
    model: nn.Module
    layout: Layout
    people: Mapping[int, Any]
    loss: Loss

    @classmethod
    def of(cls, recipe: Recipe, model: nn.Module, people: Mapping[int, Any], loss: Loss) -> Node:
        """The node that holds these people."""
        check_model(model)
        _check_numbers(people, recipe.plan.num_clients)
        model = copy.deepcopy(model).to(torch.device(recipe.device))
        return cls(recipe, model, Layout.of(model), people, loss)

    def train(self, asked: RecordDict) -> RecordDict:
        """The sum of the clipped updates of the people asked for."""
        round_, key, people = _read_ask(asked)
        bound, params = self._bound(asked), self._params(asked)
        total = clipped_sum(params.new_empty(0, len(params)), bound)
        trained = 0
        for person in dict.fromkeys(people):  # nobody counts twice
            try:
                total += self._contribution(person, params, round_, key, bound)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a loader is a person's code too
                log.warning("person %d counts as zero: %s", person, first_line(error))
            else:
                trained += 1
        if people and not trained:  # no different from a sum of zero, but somebody hears of it
            raise InputError(
                "none of the requested people can be trained here; the lines above say why"
            )
        # One person's update is float32 and travels as such; a sum keeps its precision, so that
        # rounding cannot make one person count for more than the clip norm.
        dtype = torch.float32 if len(people) == 1 else torch.float64
        return make_reply(total, self.layout, round_, dtype)

    def _contribution(
        self, person: int, params: Vector, round_: int, key: int, bound: Bound
    ) -> Total:
        """Of one person alone; nothing is asked of the others' data, not even its shape."""
        samples = self._samples(person)
        public = (params, round_, key, bound)
        return contribution(self.recipe, self.model, self.loss, samples, person, *public)

    def evaluate(self, asked: RecordDict) -> RecordDict:
        """Accuracy and loss over all samples here: un-noised, for those who asked for that."""
        self.layout.write(self._params(asked), self.model)
        metrics = {"accuracy": accuracy} if self.loss is cross_entropy else {}
        sums, count = dict.fromkeys(["loss", *metrics], 0.0), 0
        for person in self.people:
            try:
                samples = self._samples(person)
                found = evaluate(self.model, samples, self.loss, metrics)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                log.warning("person %d is not evaluated: %s", person, first_line(error))
                continue
            count += len(samples[1])
            sums = {name: sums[name] + found[name] * len(samples[1]) for name in sums}
        means = {name: value / max(count, 1) for name, value in sums.items()}
        return RecordDict({"metrics": MetricRecord({**means, "samples": count})})

    def _samples(self, person: int) -> Samples:
        most = (self.recipe.nodes or Nodes()).most_samples
        given = self.people[person]
        return checked(self.recipe, self.model, self.loss, given, person, most)

    def _bound(self, asked: RecordDict) -> Bound:
        """What the round asks of each person, if this node's own recipe allows it."""
        numbers = {name: float(asked["ask"][name]) for name in _NUMBERS}  # pyright: ignore[reportArgumentType]
        earlier = self._params(asked, "earlier") if "earlier" in asked else None
        bound = Bound(**numbers, earlier=earlier)  # pyright: ignore[reportArgumentType]
        _check_bound(bound, self.recipe)
        return bound

    def _params(self, asked: RecordDict, which: str = "model") -> Vector:
        return unpack(asked.get(which), self.layout).float().to(self.recipe.device)


_NUMBERS = ("norm", "indicator", "quantile", "pace")  # of a Bound


def pack_models(params: Vector, bound: Bound, layout: Layout) -> dict[str, ArrayRecord]:
    """The models of a round's question, once for all nodes: a second one where there is a vote."""
    models = {"model": pack(params, layout)}
    return models if bound.earlier is None else models | {"earlier": pack(bound.earlier, layout)}


def make_ask(
    round_: int, key: int, people: Indices, models: Mapping[str, ArrayRecord], bound: Bound
) -> RecordDict:
    """What the server asks of a node: train these people from this model, within this bound."""
    ask = {"round": round_, "key": f"{key:016x}", "people": people.tolist()}
    ask |= {name: getattr(bound, name) for name in _NUMBERS}
    return RecordDict({"ask": ConfigRecord(ask), **models})


def _read_ask(asked: RecordDict) -> tuple[int, int, list[int]]:
    ask = asked["ask"]
    round_, key, people = ask["round"], ask["key"], ask["people"]
    assert isinstance(round_, int)
    assert isinstance(key, str)
    assert isinstance(people, list)
    return round_, int(key, 16), [int(j) for j in people]


def _check_bound(bound: Bound, recipe: Recipe) -> None:
    """Refuse to let people count for more, or train otherwise, than this node's recipe says."""
    clipping = recipe.plan.clipping
    most = clipping.norm if isinstance(clipping, FixedClipping) else math.inf
    asked, own = (bound.indicator, bound.quantile), clipping.indicator(bound.norm)
    if not 0 < bound.norm <= most or asked != (own, clipping.quantile):
        raise InputError(
            f"the server asks for updates of norm {bound.norm:g}, but this node's recipe allows "
            f"{most:g}, by {type(clipping).__name__}; use the same recipe on both sides"
        )
    shorten = recipe.local.shorten
    paces = [1.0] if shorten is None else [1.0, 1 / shorten]
    if bound.pace not in paces:
        raise InputError(
            f"the server asks for learning rates times {bound.pace:g}, but this node's recipe "
            f"allows {' or '.join(f'{pace:g}' for pace in paces)}, by local.shorten; use the same "
            "recipe on both sides"
        )
    if bound.earlier is not None and (shorten is None or not bound.indicator):
        raise InputError(
            "the server asks whether the model has less loss than an earlier one, but this node's "
            "recipe has no such vote: it needs local.shorten and a clip norm that adapts; use the "
            "same recipe on both sides"
        )


def _check_numbers(people: Mapping[int, Any], num_clients: int) -> None:
    if not people:
        raise InputError("this node holds nobody; give its people(context) at least one person")
    if min(people) < 0 or max(people) >= num_clients:
        raise InputError(
            f"this node holds people {min(people)} to {max(people)}, but the plan counts "
            f"{num_clients}, numbered from 0; make the two agree"
        )


@contextmanager
def _silent_failure(what: str) -> Iterator[None]:
    """Flower sends an exception's text to the server, and text made from data is data."""
    try:
        yield
    except Exception:
        log.exception("this node could not %s", what)
        raise RuntimeError(f"the node could not {what}; its own log says why") from None
