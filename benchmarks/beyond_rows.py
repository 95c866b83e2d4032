"""What benchmarks/beyond.py compares: recipes of the paper's plan, of ε alone, and plans by hand.

Each function gives the rows of one table: a name → the recipe at an ε.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from dpfedls.auto.choices import LOCAL, SCHEDULE, SMOOTHING
from dpfedls.runs import recipes

HERE = Path(__file__).parent
IDENTITY = {"kind": "identity"}

# The paper's plan of each task, as its recipe has it; what it has none for is given that of its
# nearest relative: the CNN on MNIST that of the CNN on SVHN, writers that of MNIST, chats that of
# Shakespeare, with a clip norm for a small model: the best of 0.3, 1 and 5 at ε = 2.
PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist-logistic": ("mnist-logistic", {}),
    "mnist-cnn": (
        "svhn-cnn",
        {
            "task": str(HERE / "beyond_tasks.py") + ":mnist_cnn",
            "plan.num_clients": 1000,
            "local.batch_size": 10,
            "local.epochs": 5,
        },
    ),
    "mnist-writers": ("mnist-logistic", {"task": "mnist-writers"}),
    "mnist-many": ("mnist-logistic", {"plan.num_clients": 5000}),
    "digits-logistic": ("digits", {}),
    "chitchat": (
        "shakespeare-lstm",
        {
            "task": "chitchat",
            "plan.num_clients": 1100,
            "plan.clip_norm": 1.0,
            "local.precision": "float32",
        },
    ),
    "svhn-36k": (
        "svhn-cnn",
        {"task": str(HERE / "beyond_tasks.py") + ":svhn_36k", "plan.num_clients": 1000},
    ),
}
STRENGTHS = (1.0, 3.0)


def paper(task: str, epsilon: float, strength: float) -> recipes.Recipe:
    """The paper's plan at that ε, by the tight accountant."""
    name, changes = PAPER[task]
    promise = {"calibrate.epsilon": epsilon, "calibrate.accountant": "pld"}
    settings = {**promise, "denoiser.strength": strength, **changes}
    return recipes.read(name, [f"{key}={json.dumps(value)}" for key, value in settings.items()])


def automatic(task: str, epsilon: float, /, **parts: Any) -> recipes.Recipe:
    """What train(epsilon=…) chooses, with these parts given instead."""
    named = paper(task, epsilon, 0.0)
    values = {
        "task": named.task,
        "calibrate": {"epsilon": epsilon},
        "plan": {"num_clients": named.plan.num_clients},
        "evaluate_every": 1_000_000,
        **parts,
    }
    return recipes.decode(values, "beyond", [])


def cells(task: str) -> dict[str, Any]:
    """The columns of the table."""
    return {
        "DP-Fed": lambda e: paper(task, e, 0.0),
        **{f"DP-Fed-LS, σ {s:g}": lambda e, s=s: paper(task, e, s) for s in STRENGTHS},
        "automatic, no smoothing": lambda e: automatic(task, e, denoiser=IDENTITY),
        "automatic": lambda e: automatic(task, e),
    }


def ablation(task: str) -> dict[str, Any]:
    """What each part brings: left out of the whole, and added to the paper's plan."""
    chosen = automatic(task, 1.0)
    plan = recipes.msgspec.to_builtins(chosen.plan)
    adaptive, local = plan["clip_norm"], recipes.msgspec.to_builtins(chosen.local)
    old = recipes.msgspec.to_builtins(paper(task, 1.0, 0.0))
    fixed = {"server_rate": 1.0, "schedule": "constant", "denoiser": IDENTITY}

    def given(plan: dict[str, Any], local: Any, **parts: Any) -> Any:
        plan = {key: value for key, value in plan.items() if key != "noise_multiplier"}
        values = {"task": chosen.task, "plan": plan, "local": local, **parts}
        values |= {"calibrate": {"epsilon": 1.0}, "evaluate_every": 1_000_000}
        return lambda _: recipes.decode(values, "beyond", [])

    whole = {"server_rate": "auto", "schedule": SCHEDULE}
    smoothing = {"denoiser": {"kind": "adaptive-laplacian"}}
    small = {"sampler": old["plan"]["sampler"], "rounds": old["plan"]["rounds"]}
    return {
        "all of it": given(plan, local, **whole, **smoothing),
        "without smoothing": given(plan, local, **whole, denoiser=IDENTITY),
        "without adaptive clipping": given(plan | {"clip_norm": 0.3}, local, **whole, **smoothing),
        "without the rate rule": given(plan, local, **fixed | smoothing | {"schedule": SCHEDULE}),
        "without the planner": given(plan | small, local, **whole, **smoothing),
        "linear fall": given(plan, local, **whole | {"schedule": "linear"}, **smoothing),
        "constant rate": given(plan, local, **whole | {"schedule": "constant"}, **smoothing),
        "paper's local training": given(plan, old["local"], **whole, **smoothing),
        "the paper's plan": given(old["plan"], old["local"], **fixed),
        "and the planner": given(old["plan"] | {k: plan[k] for k in small}, old["local"], **fixed),
        "and adaptive clipping": given(
            old["plan"] | {"clip_norm": adaptive}, old["local"], **fixed
        ),
        "and the rate rule": given(
            old["plan"], old["local"], **fixed | {"server_rate": "auto", "schedule": SCHEDULE}
        ),
        "and adaptive smoothing": given(old["plan"], old["local"], **fixed | smoothing),
    }


def plans() -> dict[str, Any]:
    """What the CNN on MNIST reaches with other cohorts and rounds than those chosen."""
    rest = {"local": LOCAL, "denoiser": SMOOTHING, "server_rate": "auto", "schedule": SCHEDULE}
    rest = recipes.msgspec.to_builtins(rest)

    def given(cohort: int, rounds: int) -> Any:
        plan = {"num_clients": 1000, "rounds": rounds, "clip_norm": {"kind": "adaptive"}}
        plan |= {"sampler": {"kind": "poisson", "rate": cohort / 1000}}
        return lambda epsilon: automatic("mnist-cnn", epsilon, plan=plan, **rest)

    pairs = [(50, 400), (100, 200), (100, 400), (200, 200), (200, 400), (500, 100)]
    return {f"{c} people, {r} rounds": given(c, r) for c, r in pairs}


def dealt_out(people: int, epsilon: float, model: str, plan: Any = None, **parts: Any) -> Any:
    """All of MNIST among so many people, δ = 1e-5; the rest chosen, or as given."""
    plan = {"num_clients": people, "delta": 1e-5, **(plan or {})}
    task = f"{HERE / 'beyond_tasks.py'}:{model}"
    return automatic("mnist-cnn", epsilon, task=task, plan=plan, **parts)


class ByHand(NamedTuple):
    """What somebody who knows DP-SGD would give for one image a person."""

    cohort: int = 1000
    rounds: int = 1000
    steps: int = 1
    learning_rate: float = 0.5
    quantile: float = 0.8  # the median falls to nothing once most images are recognised
    noise: float = 0.08

    def __str__(self) -> str:
        return (
            f"{self.cohort:,} people, {self.rounds:,} rounds, steps {self.steps} of "
            f"{self.learning_rate:g}, clip quantile {self.quantile:g}, noise {self.noise:g}"
        )

    def recipe(self, epsilon: float, model: str) -> recipes.Recipe:
        """The whole recipe, nothing left open."""
        sampler = {"kind": "poisson", "rate": self.cohort / 60_000}
        clip_norm = {"kind": "adaptive", "quantile": self.quantile}
        local = {"steps": self.steps, "batch_size": 1, "learning_rate": self.learning_rate}
        return dealt_out(
            60_000,
            epsilon,
            model,
            plan={"sampler": sampler, "rounds": self.rounds, "clip_norm": clip_norm},
            local=local,
            server_rate={"kind": "noise", "noise": self.noise, "at_most": 100.0},
            schedule="linear",
            denoiser=IDENTITY,
        )


BY_HAND = ByHand()
TRIALS = [
    BY_HAND,
    ByHand(quantile=0.5),
    ByHand(noise=0.04),
    ByHand(noise=0.16),
    ByHand(cohort=2000),
    ByHand(rounds=2000),
    ByHand(steps=5, learning_rate=0.1),
]


def records() -> dict[str, Any]:
    """One image a person: ε alone, and a plan of DP-SGD's kind given by hand."""
    columns = {}
    for name, model in {"ReLU": "mnist_all", "tanh": "mnist_all_tanh"}.items():
        columns[f"ε alone, {name}"] = lambda e, m=model: dealt_out(60_000, e, m)
        columns[f"by hand, {name}"] = lambda e, m=model: BY_HAND.recipe(e, m)
    return columns


def trials() -> dict[str, Any]:
    """Other plans by hand, with tanh."""
    return {str(trial): lambda e, t=trial: t.recipe(e, "mnist_all_tanh") for trial in TRIALS}


def steps() -> dict[str, Any]:
    """One image a person and a linear model: ε alone; local training and clipping, rate to 2."""
    rate = {"kind": "noise", "noise": 0.08, "at_most": 2.0}
    shared = {"server_rate": rate, "schedule": "linear"}

    def given(count: int, rate: float, quantile: float) -> Any:
        local = {"steps": count, "learning_rate": rate, "retry_step": None}
        plan = {"clip_norm": {"kind": "adaptive", "quantile": quantile}}
        return lambda e: dealt_out(60_000, e, "mnist_all_linear", plan, local=local, **shared)

    tried = [(25, 0.05, 0.5), (5, 0.05, 0.5), (1, 0.05, 0.5), (1, 0.5, 0.5)]
    tried += [(25, 0.05, 0.8), (5, 0.05, 0.8), (1, 0.5, 0.8)]
    rows = {f"steps {s} of {r:g}, clip quantile {q:g}": given(s, r, q) for s, r, q in tried}
    return rows | {"ε alone": lambda e: dealt_out(60_000, e, "mnist_all_linear")}


def users() -> dict[str, Any]:
    """As many people as a tutorial of TFF has."""
    return {"ε alone": lambda e: dealt_out(3383, e, "mnist_all")}


def few() -> dict[str, Any]:
    """Where the paper's plan was once ahead: 200 people, and how fast the server rate falls."""
    task = "digits-logistic"
    return {
        "DP-Fed": lambda e: paper(task, e, 0.0),
        "automatic, linear fall": lambda e: automatic(task, e, schedule="linear"),
        "automatic": lambda e: automatic(task, e),
    }
