"""DP-Fed-LS as a Flower strategy: the simulation's round with messages in the middle.

sample ─▶ ask the nodes ─▶ check replies ─▶ sum ─┃─▶ add noise ─▶ Release ─▶ denoise ─▶ step
└──────────────── sensitive ────────────────────┘┃└──────────── public from here on ────────┘
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from dpfedls.denoising import AnyCallable
from dpfedls.errors import InputError
from dpfedls.flower.agreement import Agreement
from dpfedls.flower.client import make_ask, pack_models
from dpfedls.flower.exchange import Post, message
from dpfedls.flower.incoming import Limit
from dpfedls.flower.promise import NOISE_ALONE, on_nodes
from dpfedls.flower.replies import Refused, Request, pack, read_metrics, read_update
from dpfedls.flower.roster import make_roster
from dpfedls.metrics import Metrics, Samples
from dpfedls.people.checks import check_model, check_samples
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.randomness import RandomStreams, SeededStreams, SystemStreams
from dpfedls.runs.recipe import Recipe, built
from dpfedls.runs.record import Result as DPFedLSResult
from dpfedls.runs.record import RoundRecord, Watch
from dpfedls.runs.run import open_run, server_for
from dpfedls.runs.watch import describe
from dpfedls.server import ServerState
from dpfedls.tasks.task import Task

log = logging.getLogger("dpfedls")


class DPFedLS(Strategy):
    """Train a recipe's plan on a federation of SuperNodes.

    ``folder`` is the run folder: new, or that of an interrupted run, which is then resumed after
    its last released round. ``people`` maps a node's public key (the text of its .pub file), or its
    Flower id, to the numbers of the people it holds; without it every node is asked once, and
    believed. ``test`` samples are the server's own.

    Guarantees: who is sampled, the noise, the denominator and whether a round is released depend
    on the plan alone; a missing or refused reply counts as zero; every round is paid for on disk
    before its noise is drawn; metrics from nodes are neither asked for nor accepted unless
    ``unprotected_client_metrics=True``, which the statement then says; fixed-size cohorts, which
    nodes can work out, are refused unless ``reveal_cohorts=True``, and then the statement gives
    the ε against those who do.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        model: nn.Module,
        folder: Path | str,
        test: Samples | None = None,
        test_from: str = "",
        loss: Loss = cross_entropy,
        metrics: Metrics | None = None,
        denoiser: AnyCallable | None = None,
        people: Mapping[int, Sequence[int]] | Agreement | None = None,
        wait_for_nodes: int = 1,
        streams: RandomStreams | None = None,
        unprotected_client_metrics: bool = False,
        reveal_cohorts: bool = False,
        watch: Sequence[Watch] = (),
    ) -> None:
        recipe = on_nodes(
            recipe,
            reveal_cohorts=reveal_cohorts,
            unprotected_client_metrics=unprotected_client_metrics,
        )
        assert recipe.nodes is not None
        check_model(model)
        model = copy.deepcopy(model).to(recipe.device)
        if test is not None:
            check_samples(model, test, "test", loss)
        self.roster = make_roster(recipe.plan.num_clients, people)
        self.streams = streams or _streams(recipe)
        if recipe.mode == "deployed" and not isinstance(self.streams, SystemStreams):
            raise InputError(
                f'streams is {type(self.streams).__name__}, and mode = "deployed" promises noise '
                "that nobody can draw again; leave streams out, or simulate"
            )
        self.wait_for_nodes = wait_for_nodes
        self.unprotected_client_metrics = recipe.nodes.unprotected_client_metrics
        server = server_for(recipe, model, denoiser or built(recipe.denoiser))
        nobody = ClientData.nobody(recipe.plan.num_clients)  # people's data is on the nodes
        task = Task(nobody, model, test, loss=loss, metrics=metrics or {}, test_from=test_from)
        engine = "chosen by each node"
        self.run = open_run(recipe, task, model, server, engine, Path(folder), [*watch, _say])
        self.server, self.plan = self.run.server, recipe.plan
        self.outcome: DPFedLSResult | None = None
        self._asked: dict[int, Request] = {}  # of the round under way, by node

    # ── The loop ─────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """The rounds that are left, each waiting at most ``timeout`` seconds for replies.

        The recipe says how a round goes and how many there are, so the model, ``num_rounds`` and
        the configs of Flower's own strategies are not needed here; they are refused if given.
        """
        for name, given in (
            ("initial_arrays", initial_arrays),
            ("num_rounds", num_rounds),
            ("train_config", train_config),
            ("evaluate_config", evaluate_config),
        ):
            if given is not None:
                raise InputError(f"DPFedLS.start takes no {name}: the recipe and the model say it")
        _show_log()
        self.summary()
        result = Result(arrays=self._arrays())

        def for_flower(line: RoundRecord) -> None:
            result.arrays = self._arrays()
            if line.metrics:
                result.evaluate_metrics_serverapp[line.round] = _metrics(line)
            if evaluate_fn and (found := evaluate_fn(line.round, result.arrays)) is not None:
                result.evaluate_metrics_serverapp[line.round] = found
            self._evaluate_on_nodes(grid, timeout, result)

        def make_round(state: ServerState) -> ServerState:
            """One round of DP-Fed-LS: sample, ask, check, sum; then noise, denoise, step."""
            t = state.round
            self.run.check_budget(self.streams.nonce(t, state.params.device))
            asked = self.configure_train(t + 1, ArrayRecord(), ConfigRecord(), grid)
            post = Post(Limit.of_update(self.server.layout)).send(grid, asked)
            self.aggregate_train(t + 1, post.replies(grid, timeout))
            return self._released

        self.run.watch = [*self.run.watch, for_flower]
        if self.run.state.round < self.plan.rounds:
            self.roster.gather(grid, self.wait_for_nodes, timeout)
        self.outcome = self.run.through(make_round)
        if self.outcome.exhausted is not None:
            log.warning("%s", self.outcome.exhausted)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes that hold this round's cohort, as far as they are connected."""
        t = server_round - 1
        self.roster.settle(grid)
        cohort = self.plan.sampler.sample(self.plan.num_clients, self.streams.sampling(t))
        key = self.streams.shuffling(t)
        state = self.run.state
        bound = self.server.bound(state)
        models = pack_models(self.server.broadcast(state), bound, self.server.layout)
        connected = set(grid.get_node_ids())
        self._asked = {}
        messages = []
        for node, people in self.roster.people.by_node(cohort).items():
            self._asked[node] = Request(node, t, len(people))
            if node in connected:
                content = make_ask(t, key, people, models, bound)
                messages.append(message(content, node, MessageType.TRAIN, server_round))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum what passes every check; whatever came, noise is added and the round released."""
        t, state = server_round - 1, self.run.state
        bound, waiting = self.server.bound(state), dict(self._asked)
        total = torch.zeros(
            len(state.params) + (bound.indicator > 0),
            dtype=torch.float64,
            device=state.params.device,
        )
        counted = 0
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                request = waiting.pop(node, None)
                if request is None:
                    raise Refused("it was not asked for, or is a second one")
                update = read_update(reply, request, self.server.layout, bound)
                total += update.to(total.device)
                counted += 1
            except Refused as cause:
                log.warning("round %d: reply of node %d counts as zero: %s", t + 1, node, cause)
        for node in waiting:
            log.warning("round %d: node %d counts as zero: no reply in time", t + 1, node)
        if self._asked and not counted:  # to end the run here would tell it without noise
            log.error(
                "round %d: none of the %d nodes asked counts, so %s; if that goes on, stop the "
                "run, mend what the nodes' logs say, and run the same command again",
                t + 1,
                len(self._asked),
                NOISE_ALONE,
            )
        noise, nonce = self.streams.noise(t), self.streams.nonce(t, total.device)
        self._released = self.server.finish_round(state, total, noise, nonce)
        return self._arrays(self._released), None

    # ── How good the model is ────────────────────────────────────────────────────────────────

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing is asked, unless un-noised metrics were switched on explicitly."""
        if not self.unprotected_client_metrics:
            return []
        content = RecordDict({"model": pack(self.run.state.average, self.server.layout)})
        nodes = [node for node in grid.get_node_ids() if node in self.roster.people]
        return [message(content, node, MessageType.EVALUATE, server_round) for node in nodes]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The mean over samples of what nodes report: not private, and as true as they are."""
        found = []
        for reply in replies if self.unprotected_client_metrics else ():
            try:
                found.append(read_metrics(reply))
            except Refused as cause:
                node = reply.metadata.src_node_id
                log.warning("metrics of node %d are left out: %s", node, cause)
        samples = sum(metrics["samples"] for metrics in found)
        if not samples:
            return None
        keys = set.intersection(*(set(metrics) for metrics in found)) - {"samples"}
        return MetricRecord({k: sum(m[k] * m["samples"] for m in found) / samples for k in keys})

    def _evaluate_on_nodes(self, grid: Grid, timeout: float, result: Result) -> None:
        t = self.run.state.round
        asked = self.configure_evaluate(t, ArrayRecord(), ConfigRecord(), grid)
        post = Post(Limit(numbers=0)).send(grid, asked)
        found = self.aggregate_evaluate(t, post.replies(grid, timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[t] = found

    def summary(self) -> None:
        """Say what is about to happen, and loudly what is not protected."""
        plan, done = self.plan, self.run.state.round
        log.info("DP-Fed-LS: %d of %d rounds done; %s", done, plan.rounds, plan)
        if not plan.is_private:
            log.warning("noise_multiplier is 0: this is federated averaging and it is NOT private")
        if not isinstance(self.streams, SystemStreams):
            log.warning("noise comes from a seed: whoever knows it can undo the noise; NOT private")
        if self.unprotected_client_metrics:
            log.warning(
                "unprotected_client_metrics: accuracy and loss on people's own data leave the "
                "nodes WITHOUT NOISE; no privacy statement covers them"
            )

    def _arrays(self, state: ServerState | None = None) -> ArrayRecord:
        """The released model, as Flower and torch know it."""
        tensors = self.server.layout.split((state or self.run.state).average)
        return ArrayRecord({name: Array(tensor.cpu().numpy()) for name, tensor in tensors.items()})


def _streams(recipe: Recipe) -> RandomStreams:
    return SystemStreams() if recipe.mode == "deployed" else SeededStreams(recipe.seed)


def _show_log() -> None:
    """Flower streams what a ServerApp prints, and nobody else has set up our log there."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("dpfedls: %(message)s"))
        log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)


def _say(line: RoundRecord) -> None:
    """A line for ``flwr run --stream``."""
    log.info("round %d: %s", line.round, describe(line))


def _metrics(line: RoundRecord) -> MetricRecord:
    values = {**line.metrics, "epsilon": line.epsilon}
    return MetricRecord({key: value for key, value in values.items() if value is not None})
