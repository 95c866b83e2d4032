"""``dpfedls tune``: the best settings of a grid at one (ε, δ), tried on data that may be tried on.

A rung is a number of seeds. Fewer rounds, or fewer people, would need other noise for the same ε,
and a setting that is best there need not be best in the real run: the ranking itself would be
wrong. Here every trial is the whole run at the whole promise, and a rung only says how well its
mean is known. All trials of a rung have the same seeds, hence the same cohorts and splits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import cached_property, partial
from statistics import mean, stdev
from typing import Any

from msgspec.structs import replace

from dpfedls.errors import InputError
from dpfedls.privacy.accounting.selection import best_of_many_epsilon
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs.grid import (
    Metrics,
    Point,
    Tell,
    axis,
    described,
    first_metric,
    points,
    spread,
    tell_round,
)
from dpfedls.runs.recipe import Recipe, built
from dpfedls.runs.record import Watch, last_metrics
from dpfedls.runs.side_by_side import Job, ProcessLost, SideBySide
from dpfedls.runs.simulate import simulate
from dpfedls.tasks.task import make_task

NOTE = (
    "choose on proxy data: settings chosen on people's own data tell something about them that no "
    "trial's ε includes; --price says what repeat-and-select would cost"
)
# What the promise consists of, and whom it is made to: fixed here, so that trials can be compared.
_PROMISE = ("plan", "plan.noise_multiplier", "plan.delta", "plan.num_clients", "budget", "task")


@dataclass
class Trial:
    """A point of the grid and what its seeds came to so far, in whichever order they ended."""

    point: Point
    found: dict[int, Metrics] = field(default_factory=dict)  # by seed
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def metrics(self) -> list[Metrics]:
        """Of the seeds that were trained, in their order."""
        return [self.found[seed] for seed in sorted(self.found)]

    @property
    def failed(self) -> list[str]:
        """What went wrong, in the order of seeds."""
        return [f"seed {seed}: {self.errors[seed]}" for seed in sorted(self.errors)]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "settings": self.point.settings,
            "metrics": spread(self.metrics),
            "epsilon": self.epsilon,
            "seeds": len(self.metrics),
            "failed": self.failed,
        }

    @property
    def epsilon(self) -> float:
        """What every trial is calibrated to."""
        assert self.point.recipe.calibrate is not None
        return self.point.recipe.calibrate.epsilon

    @cached_property
    def recipe(self) -> Recipe:
        """With its noise chosen."""
        return self.point.recipe.resolved()


@dataclass(frozen=True)
class Goal:
    """Which metric decides, and whether more of it is better; unnamed: accuracy, else the loss."""

    metric: str | None = None
    highest: bool = True

    def score(self, trial: Trial) -> float:
        """The larger, the better; a trial that failed is worse than all others."""
        return -math.inf if trial.failed else mean(self.scores(trial))

    def name(self, trial: Trial) -> str:
        """The metric that decides."""
        name = self.metric or first_metric(trial.metrics[0])
        if name is None or name not in trial.metrics[0]:
            raise InputError(
                f"the task has no metric {name!r} to choose by; it has: "
                f"{', '.join(trial.metrics[0])}"
            )
        return name

    def scores(self, trial: Trial) -> list[float]:
        """Of each of its seeds."""
        name = self.name(trial)
        sign = 1 if (self.highest if self.metric else name != "loss") else -1
        found = [metrics.get(name) for metrics in trial.metrics]
        return [-math.inf if value is None else sign * value for value in found]


@dataclass(frozen=True)
class _Attempt(Job):
    trial: Trial


def trials_for(source: str, grid: Sequence[str], settings: Sequence[str]) -> list[Trial]:
    """The points of the grid, each calibrated to the ε and δ of the recipe as it stands."""
    keys = [axis(text)[0] for text in grid]
    fixed = [key for key in keys if key in _PROMISE or key.split(".")[0] == "calibrate"]
    if fixed:
        raise InputError(
            f"--grid {fixed[0]}=… would change the promise, which tune keeps fixed so that trials "
            f"can be compared; set it with --set, or compare promises with dpfedls sweep"
        )
    base = recipes.read(source, list(settings))
    _check_proxy(base)
    epsilon = base.resolved().plan.epsilon() if base.calibrate is None else base.calibrate.epsilon
    if math.isinf(epsilon):
        raise InputError(
            "the recipe adds no noise, so there is no ε to keep fixed; name one: "
            "--set calibrate.epsilon=4, or compare settings with dpfedls sweep"
        )
    last = [f"calibrate.epsilon={epsilon!r}", f"plan.delta={base.plan.target_delta!r}"]
    trials = [Trial(point) for point in points(source, grid, settings, last)]
    for trial in trials:
        _check_proxy(trial.point.recipe)
    return trials


def tune(
    trials: Sequence[Trial], most_seeds: int, goal: Goal, tell: Tell, jobs: int | None = None
) -> dict[str, Any]:
    """The best trial by successive halving over seeds: 1, 2, 4, …; the better half goes on."""
    alive, seeds, evaluated_on = list(trials), 1, ""
    with SideBySide(jobs) as runs:
        while True:
            rung = [attempt for trial in alive for attempt in _attempts(trial, seeds)]
            for job, outcome in runs.outcomes(_try, rung, partial(tell_round, tell)):
                evaluated_on = _take(job, outcome, tell) or evaluated_on
                goal.score(job.trial)  # so that a metric which is not there is said at once
            alive.sort(key=goal.score, reverse=True)  # stable: of equals the first in the grid
            if seeds >= most_seeds:
                break
            # Two at least: the winner is compared with somebody at the full number of seeds.
            alive = alive[: max(2, math.ceil(len(alive) / 2))]
            seeds = min(2 * seeds, most_seeds)
    if alive[0].failed:
        first = next(trial for trial in trials if trial.failed)
        raise InputError(f"all trials that were left failed; the first one: {first.failed[0]}")
    best = alive[0]
    return {
        "best": best.plain(),
        "next": _next(alive, goal),
        "trials": [trial.plain() for trial in trials],
        "epsilon": best.epsilon,
        "accountant": best.recipe.calibrate.accountant if best.recipe.calibrate else "pld",
        "epsilon_by_pld": best.recipe.plan.epsilon(),
        "delta": best.point.recipe.plan.delta,
        "evaluated_on": evaluated_on,
        "set": best.point.whole,
        "toml": recipes.encode(replace(best.point.recipe, reproduces="")),  # it is another one now
        "note": NOTE,
    }


def _next(alive: Sequence[Trial], goal: Goal) -> dict[str, Any] | None:
    """How far the second is behind the best, seed by seed, since both have the same seeds."""
    if len(alive) < 2 or alive[1].failed:
        return None
    pairs = zip(goal.scores(alive[0]), goal.scores(alive[1]), strict=True)
    behind = [best - second for best, second in pairs]
    if not all(map(math.isfinite, behind)):
        return None
    return {
        "settings": alive[1].point.settings,
        "metric": goal.name(alive[0]),
        "behind": mean(behind),
        "error": stdev(behind) / math.sqrt(len(behind)) if len(behind) > 1 else None,
    }


def price(trials: Sequence[Trial], repetitions: float) -> dict[str, Any]:
    """What choosing among what could be trained would cost on people's own data, and how to."""
    plans = [trial.recipe.plan for trial in trials if trial.metrics]
    spent = {(plan.round_event, plan.rounds): plan.spent(plan.rounds) for plan in plans}
    delta = plans[0].target_delta
    return {
        "repetitions": repetitions,
        "epsilon": best_of_many_epsilon(list(spent.values()), repetitions, delta),
        "delta": delta,
        "of_one_run": max(plan.epsilon() for plan in plans),
        "how": (
            f"draw a secret number from the Poisson distribution with mean {repetitions:g}; so "
            "often draw one of the settings at random and train it with fresh noise; release "
            "only the model that is best on public samples, from none of these people, and not how "
            "many there were"
        ),
    }


def _check_proxy(recipe: Recipe) -> None:
    """Trials keep no ledger, so they must not be of people to whom somebody owes an account."""
    real = {
        'mode = "deployed"': recipe.mode == "deployed",
        "population": recipe.population is not None,
        "[nodes]": recipe.nodes is not None,
    }
    for key in (key for key, there in real.items() if there):
        raise InputError(
            f"the recipe has {key}, so it is about real people, and trials are paid for in no "
            "ledger; tune a copy of it on proxy data, without that key"
        )


def _attempts(trial: Trial, seeds: int) -> list[_Attempt]:
    """The runs that a trial lacks to have so many seeds; none where one failed."""
    recipe = trial.point.recipe
    missing = range(recipe.seed + len(trial.found), recipe.seed + seeds)
    return [
        _Attempt(f"{trial.point.label} seed={seed}", replace(recipe, seed=seed), trial)
        for seed in ([] if trial.errors else missing)
    ]


def _take(job: _Attempt, outcome: tuple[str, Metrics] | Exception, tell: Tell) -> str:
    """Keep what an attempt came to; on which samples it was evaluated."""
    if isinstance(outcome, InputError | ProcessLost):
        job.trial.errors[job.recipe.seed] = str(outcome)
        tell(job.name, f"failed: {outcome}", True)
        return ""
    if isinstance(outcome, Exception):
        raise outcome
    on, job.trial.found[job.recipe.seed] = outcome
    tell(job.name, described(outcome[1]), True)
    return on


def _try(job: _Attempt, watch: Watch) -> tuple[str, Metrics]:
    """Train in memory; on which samples the model was evaluated, and how it fared."""
    # Only the last model counts.
    resolved, rounds = job.recipe.resolved(), job.recipe.plan.rounds
    recipe = replace(resolved, evaluate_every=rounds, diagnose=False)
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    on, samples = "validation", task.validation
    if samples is None:
        on, samples = "test", task.test
    if samples is None:
        raise InputError(
            "the task has neither validation nor test samples, so trials cannot be compared; "
            "give it some: dpfedls.Task(…, validation=(x, y))"
        )
    task = changed(task, test=samples)
    made = simulate(recipe, task, built(recipe.denoiser), None, [watch])
    return on, last_metrics(made.history)
