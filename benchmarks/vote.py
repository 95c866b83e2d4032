"""ε alone, and ε alone with a vote of each cohort: where learning stalls, trainings become short.

    python benchmarks/vote.py run lectures --epsilon 0.5 --seeds 2
    python benchmarks/vote.py table                     the table of docs/results/beyond.md

A prototype: it says what the vote would bring, and is no part of the library. In the first half of
the rounds everybody in the cohort says whether the model has a lower loss on their own samples than
an earlier one. One coordinate of the release, as that of the adaptive norm, would tell the share:
its noise is drawn here, and all noise is larger by what it costs. Every run is a line of
docs/results/vote.jsonl: stop it and go on at will.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from dataclasses import replace as with_other
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import torch
from msgspec.structs import replace
from one_change import score

from dpfedls.auto.planner import MOST_RATE
from dpfedls.clipping import Bound
from dpfedls.engine import Engine, choose
from dpfedls.local_sgd import LocalUpdate
from dpfedls.parameters import Layout, Total, Vector
from dpfedls.people.calling import call_with
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import SeededStreams
from dpfedls.runs.fitting import ready
from dpfedls.runs.simulate import simulate
from dpfedls.runs.train import asked
from dpfedls.sampling import Indices
from dpfedls.server import Server, ServerState
from dpfedls.simulation import Simulation
from dpfedls.stepping import NoiseRate, step_length
from dpfedls.tasks.task import Task, make_task

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "vote.jsonl"
WINDOW, UNTIL = 0.1, 0.5  # shares of the rounds
BELOW, DEVIATIONS = 0.6, 2.0  # stalled: a share below this by so many standard deviations
SHORTER = 16.0  # then the learning rate by this, and the server rate's limit times this
SAMPLES = 100  # of a person, at most
WEIGHT = 0.5  # of the vote's coordinate, beside that of the norm
COST = math.sqrt(1 + WEIGHT**2 * (1 - 1.01**-2))  # by which all noise is larger: 1.0025
Row = dict[str, Any]


@dataclass
class Vote:
    """What cohorts said of the model beside the one at the start of the window before."""

    task: Task
    plan: PrivacyPlan
    layout: Layout
    rng: np.random.Generator
    marks: list[Vector] = field(default_factory=list)
    said: list[float] = field(default_factory=list)  # noisy shares of this window
    shares: list[float] = field(default_factory=list)  # of each window before
    stalled: int | None = None  # the round from which trainings are short

    def hear(self, params: Vector, cohort: Indices, round_: int, norm: float) -> None:
        """Count the votes of a round; decide at the end of a window."""
        window, people = round(WINDOW * self.plan.rounds), self.plan.expected_cohort
        weight = WEIGHT * self.plan.clipping.indicator(norm)
        noise = self.plan.noise_stddev(norm) / people / weight
        if round_ % window == 0:
            self._decide(round_, math.sqrt((noise**2 + 0.25 / people) / window))
            self.marks = [*self.marks[-1:], params.clone()]
        if len(self.marks) == 2:
            votes = (self._losses(params, cohort) < self._losses(self.marks[0], cohort)) - 0.5
            self.said.append(0.5 + votes.sum() / people + noise * self.rng.standard_normal())

    def _decide(self, round_: int, error: float) -> None:
        if not self.said or self.stalled is not None or round_ > UNTIL * self.plan.rounds:
            return
        share, self.said = statistics.mean(self.said), []
        self.shares.append(round(share, 3))
        if share + DEVIATIONS * error < BELOW:
            self.stalled = round_

    @torch.no_grad()
    def _losses(self, params: Vector, cohort: Indices) -> np.ndarray:
        """Each person's mean loss; who has no samples does not vote."""
        data, task = self.task.data, self.task
        cohort = cohort[data.sizes[cohort] > 0]
        sizes = np.minimum(data.sizes[cohort], SAMPLES)
        ends = np.cumsum(sizes)
        rows = np.repeat(data.starts[cohort] - (ends - sizes), sizes) + np.arange(ends[-1])
        features, targets = data.take(torch.from_numpy(rows))
        outputs = call_with(task.model, self.layout.split(params), features)
        losses = task.loss(outputs, targets).double().numpy()
        return np.add.reduceat(losses, ends - sizes) / sizes


@dataclass(frozen=True, kw_only=True)
class AskingEngine(Engine):
    """Asks the cohort before it trains."""

    vote: Vote
    short: LocalUpdate

    def clipped_total(
        self, params: Vector, cohort: Indices, round_: int, key: int, bound: Bound
    ) -> Total:
        """As the vote says, with long or short trainings."""
        self.vote.hear(params, cohort, round_, bound.norm)
        update = self.update if self.vote.stalled is None else self.short
        plain = Engine(self.name, self.reason, update, self.data, self.block_size)
        return plain.clipped_total(params, cohort, round_, key, bound)


@dataclass(frozen=True, kw_only=True)
class FollowingServer(Server):
    """Goes further with short trainings: its rate may be as much larger."""

    vote: Vote

    def step(self, state: ServerState) -> float:
        """By a limit of the rate that rises as the learning rate falls."""
        longer = 1.0 if self.vote.stalled is None else SHORTER
        rate = self.rate
        if isinstance(rate, NoiseRate):
            rate = replace(rate, at_most=rate.at_most * longer)
        else:
            rate *= longer
        return step_length(rate, self.schedule, self.plan, state.clip_norm, state.round)


def trained(task: Task, epsilon: float, seed: int, voting: bool) -> Row:
    """One run, and where it changed to short trainings."""
    given = {"model": task.model, "clients": task.data, "loss": task.loss}
    recipe, own, denoiser = asked(**given, seed=seed, evaluate_every=10**6, epsilon=epsilon)
    recipe = ready(recipe, own)
    if not voting:
        return score(simulate(recipe, own, denoiser, None), task)
    rate, plan = recipe.server_rate, recipe.plan
    if isinstance(rate, NoiseRate) and rate.at_most > MOST_RATE[recipe.schedule]:
        sys.exit("trainings are short here, or there is very little noise: nothing to decide")
    assert plan.noise_multiplier is not None
    plan = replace(plan, noise_multiplier=plan.noise_multiplier * COST)
    recipe = replace(recipe, plan=plan)
    vote = Vote(task, plan, Layout.of(task.model), np.random.default_rng([seed, 11]))

    def observe(simulation: Simulation) -> Simulation:
        engine, server = simulation.engine, simulation.server
        local = replace(recipe.local, learning_rate=recipe.local.learning_rate / SHORTER)
        short = choose(task.model, own.data, local, task.loss).update
        return with_other(
            simulation,
            engine=AskingEngine(**vars(engine), vote=vote, short=short),
            server=FollowingServer(**vars(server), vote=vote),
        )

    result = simulate(recipe, own, denoiser, None, observe=observe)
    return score(result, task) | {"shares": vote.shares, "stalled": vote.stalled}


def _make(name: str, seed: int) -> Task:
    if name == "mnist-logistic":
        return make_task(name, 500, SeededStreams(seed))
    return foreign.make(name, seed)


def _kept() -> list[Row]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    return [json.loads(line) for line in lines]


def run(name: str, epsilon: float, seed: int) -> None:
    """Without the vote and with it, unless it is kept."""
    for voting in (False, True):
        row: Row = {"task": name, "epsilon": epsilon, "seed": seed, "vote": voting}
        if any(row.items() <= kept.items() for kept in _kept()):
            continue
        task, start = _make(name, seed), time.process_time()
        row |= trained(task, epsilon, seed, voting)
        row["seconds"] = round(time.process_time() - start, 1)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), file=sys.stderr, flush=True)


def table() -> str:
    """Each task without the vote and with it, and the round of the change in each seed."""
    lines = ["| task | ε | ε alone | with the vote | difference | short from round |"]
    lines.append("|---|---|---|---|---|---|")
    found: dict[tuple[str, float], dict[tuple[int, bool], Row]] = {}
    for row in _kept():
        key = row["task"], row["epsilon"]
        found.setdefault(key, {})[row["seed"], row["vote"]] = row
    for (task, epsilon), rows in sorted(found.items()):
        seeds = sorted(seed for seed, voting in rows if voting and (seed, False) in rows)
        alone, votes = ([rows[s, v]["score"] for s in seeds] for v in (False, True))
        apart = [b - a for a, b in zip(alone, votes, strict=True)]
        digits = 2 if rows[seeds[0], True]["of"] == "accuracy" else 4
        error = ""
        if len(apart) > 1:
            error = f" ± {statistics.stdev(apart) / len(apart) ** 0.5:.{digits}f}"
        changes = ", ".join(str(rows[s, True]["stalled"] or "–") for s in seeds)
        lines.append(
            f"| `{task}` | {epsilon:g} | {statistics.mean(alone):.{digits}f} "
            f"| {statistics.mean(votes):.{digits}f} "
            f"| {statistics.mean(apart):+.{digits}f}{error} | {changes} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("tasks", nargs="*", metavar="task", help="mnist-logistic, or of foreign.py")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=2)
    asked_for = parser.parse_args()
    for name in asked_for.tasks:
        for seed in range(asked_for.seeds):
            run(name, asked_for.epsilon, seed)
    print(table())


if __name__ == "__main__":
    main()
