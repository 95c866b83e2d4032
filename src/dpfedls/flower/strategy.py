"""DP-Fed-LS as a Flower strategy: the simulation's round with messages in the middle.

sample ─▶ ask the nodes ─▶ check replies ─▶ sum ─┃─▶ add noise ─▶ Release ─▶ denoise ─▶ step
└──────────────── sensitive ────────────────────┘┃└──────────── public from here on ────────┘
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from torch import Tensor, nn

from dpfedls.checks import check_model, check_samples
from dpfedls.errors import BudgetExhausted, InputError
from dpfedls.flower.client import make_ask
from dpfedls.flower.exchange import Post, message
from dpfedls.flower.replies import Refused, Request, pack, read_update
from dpfedls.flower.roster import People, Roster
from dpfedls.local_sgd import Loss, cross_entropy
from dpfedls.metrics import evaluate
from dpfedls.parameters import Layout
from dpfedls.randomness import RandomStreams, SeededStreams, SystemStreams
from dpfedls.runs.folder import RoundLog, RunFolder, Watch, server_for
from dpfedls.runs.recipe import Recipe
from dpfedls.server import ServerState

log = logging.getLogger("dpfedls")


class DPFedLS(Strategy):
    """Train a recipe's plan on a federation of SuperNodes.

    ``folder`` is the run folder: new, or that of an interrupted run, which is then resumed after
    its last released round. ``people`` maps a Flower node's id to the numbers of the people it
    holds; without it every node is asked once. ``test`` samples are the server's own.

    Guarantees: who is sampled, the noise, the denominator and whether a round is released depend
    on the plan alone; a missing or refused reply counts as zero; every round is paid for on disk
    before its noise is drawn; metrics from nodes are neither asked for nor accepted unless
    ``unprotected_client_metrics=True``.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        model: nn.Module,
        folder: Path | str,
        test: tuple[Tensor, Tensor] | None = None,
        loss: Loss = cross_entropy,
        people: Mapping[int, Sequence[int]] | None = None,
        wait_for_nodes: int = 1,
        streams: RandomStreams | None = None,
        unprotected_client_metrics: bool = False,
        watch: Watch = lambda _: None,
    ) -> None:
        check_model(model)
        self.model = copy.deepcopy(model).to(recipe.device)
        if test is not None:
            check_samples(self.model, test, "test", loss)
        self.test, self.loss = test, loss
        self.roster = Roster(People(recipe.plan.num_clients, people))
        self.streams = streams or _streams(recipe)
        self.wait_for_nodes = wait_for_nodes
        self.unprotected_client_metrics = unprotected_client_metrics
        self.watch = watch
        recipe = recipe.resolved()
        server = server_for(recipe, Layout.of(self.model))
        self.run = RunFolder(Path(folder), recipe, server, self.model)
        self.server, self.plan = self.run.server, self.run.recipe.plan
        self.exhausted: BudgetExhausted | None = None
        self.outcome: dict[str, Any] = {}
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
        self.summary()
        result = Result(arrays=self._arrays())
        try:
            self.roster.gather(grid, self.wait_for_nodes, timeout)
            while self.run.state.round < self.plan.rounds:
                line = self._run_round(grid, timeout)
                result.arrays = self._arrays()
                if line.loss is not None:
                    result.evaluate_metrics_serverapp[line.round] = _metrics(line)
                if evaluate_fn and (found := evaluate_fn(line.round, result.arrays)) is not None:
                    result.evaluate_metrics_serverapp[line.round] = found
                self._judge_on_nodes(grid, timeout, result)
        except BudgetExhausted as error:
            self.exhausted = error
            log.warning("%s", error)
        except BaseException:
            self.run.close()
            raise
        self.outcome = self.run.seal()
        return result

    def _run_round(self, grid: Grid, timeout: float) -> RoundLog:
        """One round of DP-Fed-LS: sample, ask, check, sum; then noise, denoise, step."""
        t = self.run.state.round
        self.run.check_budget(self.streams.nonce(t))
        asked = self.configure_train(t + 1, ArrayRecord(), ConfigRecord(), grid)
        replies = Post().send(grid, asked).replies(grid, timeout)
        self.aggregate_train(t + 1, replies)
        self.watch(self.run.rounds[-1])
        return self.run.rounds[-1]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes that hold this round's cohort, as far as they are connected."""
        t = server_round - 1
        self.roster.settle(grid)
        cohort = self.plan.sampler.sample(self.plan.num_clients, self.streams.sampling(t))
        key = self.streams.shuffling(t)
        params = pack(self.run.state.params, self.server.layout)
        connected = set(grid.get_node_ids())
        self._asked = {}
        messages = []
        for node, people in self.roster.people.by_node(cohort).items():
            self._asked[node] = Request(node, t, len(people))
            if node in connected:
                content = make_ask(t, key, people, params)
                messages.append(message(content, node, MessageType.TRAIN, server_round))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum what passes every check; whatever came, noise is added and the round released."""
        t, state = server_round - 1, self.run.state
        total = torch.zeros_like(state.params, dtype=torch.float64)
        waiting = dict(self._asked)
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                request = waiting.pop(node, None)
                if request is None:
                    raise Refused("it was not asked for, or is a second one")
                update = read_update(reply, request, self.server.layout, self.plan.clip_norm)
                total += update.to(total.device)
            except Refused as cause:
                log.warning("round %d: reply of node %d counts as zero: %s", t + 1, node, cause)
        for node in waiting:
            log.warning("round %d: node %d counts as zero: no reply in time", t + 1, node)
        noise, nonce = self.streams.noise(t), self.streams.nonce(t)
        state = self.server.finish_round(state, total, noise, nonce)
        self.run.record(state, *self._score(state))
        return self._arrays(), None

    # ── How good the model is ────────────────────────────────────────────────────────────────

    def _score(self, state: ServerState) -> tuple[float | None, float | None]:
        """Accuracy and loss on the server's own samples, in the rounds the recipe asks for."""
        due = state.round % self.run.recipe.evaluate_every == 0 or state.round == self.plan.rounds
        if self.test is None or not due:
            return None, None
        self.server.layout.write(state.average, self.model)
        return evaluate(self.model, self.test, self.loss)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing is asked, unless un-noised metrics were wanted in as many words."""
        if not self.unprotected_client_metrics:
            return []
        content = RecordDict({"model": pack(self.run.state.average, self.server.layout)})
        nodes = [node for node in grid.get_node_ids() if node in self.roster.people]
        return [message(content, node, MessageType.EVALUATE, server_round) for node in nodes]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The mean over samples of what nodes report: not private, and not checked."""
        found = [
            reply.content["metrics"]
            for reply in replies
            if self.unprotected_client_metrics and reply.has_content()
        ]
        samples = sum(float(m["samples"]) for m in found)  # type: ignore[arg-type]
        if not samples:
            return None
        keys = set.intersection(*(set(m) for m in found)) - {"samples"}
        return MetricRecord(
            {k: sum(float(m[k]) * float(m["samples"]) for m in found) / samples for k in keys}  # type: ignore[arg-type]
        )

    def _judge_on_nodes(self, grid: Grid, timeout: float, result: Result) -> None:
        t = self.run.state.round
        asked = self.configure_evaluate(t, ArrayRecord(), ConfigRecord(), grid)
        found = self.aggregate_evaluate(t, Post().send(grid, asked).replies(grid, timeout))
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

    def _arrays(self) -> ArrayRecord:
        """The released model, as Flower and torch know it."""
        tensors = self.server.layout.split(self.run.state.average)
        return ArrayRecord({name: Array(tensor.cpu().numpy()) for name, tensor in tensors.items()})


def _streams(recipe: Recipe) -> RandomStreams:
    return SystemStreams() if recipe.mode == "deployed" else SeededStreams(recipe.seed)


def _metrics(line: RoundLog) -> MetricRecord:
    values = {"accuracy": line.accuracy, "loss": line.loss, "epsilon": line.epsilon}
    return MetricRecord({key: value for key, value in values.items() if value is not None})
