from __future__ import annotations

import json
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dpfedls import InputError
from dpfedls.commands.grids import _behind, _live
from dpfedls.metrics import evaluate
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes, tune
from dpfedls.runs.grid import points
from dpfedls.runs.recipe import built
from dpfedls.runs.simulate import simulate
from dpfedls.runs.sweep import Made, Row
from dpfedls.tasks.task import make_task

SMALL = ["plan.num_clients=40", "plan.rounds=2"]
CALL = ["tune", "synthetic", *(word for setting in SMALL for word in ("--set", setting))]


def quiet(*_):
    pass


def pretend(monkeypatch, metrics_of):
    """Trials that train nothing: their metrics by clip norm and seed."""

    def attempt(job, watch):
        found = metrics_of(job.recipe.plan.clip_norm, job.recipe.seed)
        if found is None:
            raise InputError("it fails")
        return "validation", found

    monkeypatch.setattr(tune, "_try", attempt)
    return tune.trials_for("synthetic", ["plan.clip_norm=1,2,3,4,5,6,7,8"], SMALL)


def test_the_better_half_of_each_rung_gets_twice_the_seeds(monkeypatch):
    # Clip norm 7 is the best in the long run, but not by its first seed.
    def metrics(norm, k):
        return {"accuracy": 0.1 * norm + (0.35 if norm == 7 and k else 0), "loss": 1.0}

    trials = pretend(monkeypatch, metrics)
    best = tune.tune(trials, 4, tune.Goal(), quiet)["best"]
    assert best["settings"] == {"plan.clip_norm": 7}
    assert best["metrics"]["accuracy"]["mean"] == pytest.approx(0.7 + 0.75 * 0.35)
    assert [len(trial.metrics) for trial in trials] == [1, 1, 1, 1, 2, 2, 4, 4]


def test_two_remain_until_the_last_rung(monkeypatch):
    trials = pretend(monkeypatch, lambda norm, k: {"accuracy": norm, "loss": 1.0})[:2]
    tune.tune(trials, 5, tune.Goal(), quiet)
    assert [len(trial.metrics) for trial in trials] == [5, 5]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (lambda norm, k: norm + 9 * k, "1 behind in loss over 4 seeds, standard error 0"),
        # 5, −3, 5 and −3 behind
        (lambda norm, k: norm + 4 * (norm == 2) * (-1) ** k, "standard error 2.3: too close to"),
    ],
)
def test_the_answer_says_whether_the_two_best_are_told_apart(monkeypatch, metrics, said):
    """What a seed does to both is no doubt about which is better; what it does to one is."""
    trials = pretend(monkeypatch, lambda norm, k: {"loss": metrics(norm, k)})[:2]
    found = tune.tune(trials, 4, tune.Goal(), quiet)["next"]
    assert (found["settings"], found["behind"]) == ({"plan.clip_norm": 2}, 1)
    assert _behind(found, 4).partition(said)[1] == said


@pytest.mark.parametrize(
    ("goal", "metrics", "best"),
    [
        (tune.Goal(), lambda norm, k: {"loss": norm}, 1),
        (tune.Goal("loss", highest=False), lambda norm, k: {"accuracy": norm, "loss": norm}, 1),
        (tune.Goal("mae", highest=False), lambda norm, k: {"loss": -norm, "mae": norm}, 1),
        (tune.Goal("r2"), lambda norm, k: {"loss": norm, "r2": norm}, 8),
        (tune.Goal(), lambda norm, k: None if norm > 4 else {"accuracy": norm}, 4),
        (tune.Goal(), lambda norm, k: {"accuracy": norm if norm < 8 else None}, 7),
    ],
)
def test_what_decides(monkeypatch, goal, metrics, best):
    trials = pretend(monkeypatch, metrics)
    found = tune.tune(trials, 2, goal, quiet)["best"]["settings"]
    assert found == {"plan.clip_norm": best}


def test_a_metric_that_is_not_there_and_trials_that_all_fail(monkeypatch):
    trials = pretend(monkeypatch, lambda norm, k: {"loss": 1.0})
    with pytest.raises(InputError, match="no metric 'mae' to choose by; it has: loss"):
        tune.tune(trials, 2, tune.Goal("mae"), quiet)
    assert sum(len(trial.metrics) for trial in trials) == 1  # nobody waits for all trials first
    for metrics in (lambda norm, k: None, lambda norm, k: None if k else {"accuracy": norm}):
        trials = pretend(monkeypatch, metrics)  # all at once; or the better ones with more seeds
        with pytest.raises(InputError, match=r"failed; the first one: seed \d: it fails"):
            tune.tune(trials, 2, tune.Goal(), quiet)


def test_every_trial_keeps_the_promise_of_the_recipe():
    """Rounds and cohort differ, ε and δ do not; whether noise or ε stood in the recipe."""
    grid = ["plan.rounds=2,6", "plan.sampler.rate=0.1,0.3"]
    for settings in (["plan.noise_multiplier=1.5"], ["calibrate.epsilon=3.0"]):
        base = recipes.read("synthetic", [*SMALL, *settings]).resolved().plan
        plans = [t.recipe.plan for t in tune.trials_for("synthetic", grid, [*SMALL, *settings])]
        assert len({plan.noise_multiplier for plan in plans}) == 4
        for plan in plans:
            assert plan.delta == base.delta
            assert plan.epsilon() == pytest.approx(base.epsilon(), rel=2e-3)


@pytest.mark.parametrize(
    ("grid", "settings", "why"),
    [
        ("plan.noise_multiplier=1,2", [], "would change the promise"),
        ("calibrate.epsilon=1,2", [], "would change the promise"),
        ("plan.delta=0.1,0.2", [], "would change the promise"),
        ("plan.num_clients=10,20", [], "would change the promise"),
        ("server_rate=1,2", ["plan.noise_multiplier=0"], "no ε to keep fixed"),
        ("server_rate=1,2", ['mode="deployed"'], 'has mode = "deployed", so it is about real'),
        ("server_rate=1,2", ["population=/p.sqlite"], "has population, so it is about real"),
        ("mode=simulation,deployed", [], 'has mode = "deployed", so it is about real'),
        ("population=/p.sqlite", [], "has population, so it is about real"),
        ("server_rate=1,1.0,2", [], "one run twice, as server_rate=1 and server_rate=1.0"),
    ],
)
def test_what_cannot_be_tuned_is_refused(grid, settings, why):
    with pytest.raises(InputError, match=why):
        tune.trials_for("synthetic", [grid], [*SMALL, *settings])


def test_trials_are_evaluated_on_validation_samples_and_the_best_can_be_run(dpfedls, tmp_path):
    grid = ["--grid", "server_rate=1e39,0.5,1", "--seeds", 2, "--price", 3]
    code, out, err = dpfedls(*CALL, *grid, "--out", "best.toml", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["evaluated_on"] == "validation"
    assert Counter(trial["seeds"] for trial in found["trials"]) == {0: 1, 2: 2}
    assert "not finite" in found["trials"][0]["failed"][0]
    assert "proxy data" in found["note"]
    assert found["price"]["epsilon"] > found["price"]["of_one_run"]
    best = recipes.read(str(tmp_path / "best.toml"))
    assert best.server_rate == found["best"]["settings"]["server_rate"]
    plan = best.resolved().plan
    assert found["epsilon"] == pytest.approx(plan.epsilon(), rel=2e-3)
    # The same run by itself, its model evaluated on the validation samples here.
    task = make_task(best.task, plan.num_clients, SeededStreams(0))
    made = simulate(best.resolved(), task, built(best.denoiser), None)
    first = evaluate(made.model, task.validation, task.loss, task.metrics)["accuracy"]
    assert made.accuracy != first
    assert f"server_rate={best.server_rate:g} seed=0: accuracy {first:.4g}" in err
    code, _, err = dpfedls(*CALL, *grid, "--out", "best.toml")
    assert (code, "must be a new file" in err) == (2, True)


def test_seeds_stand_in_their_order_in_whichever_they_ended():
    (point,) = points("synthetic", ["server_rate=1"])
    first, second = {"loss": 1.0}, {"loss": 2.0}
    trial = tune.Trial(point, {1: second, 0: first}, {3: "late", 2: "early"})
    assert trial.metrics == [first, second]
    assert trial.failed == ["seed 2: early", "seed 3: late"]
    row = Row(point, {1: Made(Path("b"), second, 1.0), 0: Made(Path("a"), first, 1.0)})
    assert row.plain()["runs"] == ["a", "b"]


def test_the_live_table_shows_all_that_runs_at_the_moment():
    rows = [{"settings": {"rate": 1}, "seeds": 0, "failed": [], "metrics": {}, "epsilon": 2.0}]
    shown = []
    tell = _live(lambda: rows, shown.append)

    def lines():
        console = Console(width=60, file=StringIO())
        console.print(shown[-1])
        return [line.strip() for line in console.file.getvalue().splitlines()]

    assert lines()[1].strip("┃").split("┃")[0].strip() == "rate"  # before the first round
    tell("rate=1 seed=0", "round 1/9", False)
    tell("rate=1 seed=1", "round 2/9", False)
    assert lines()[:2] == ["rate=1 seed=0: round 1/9", "rate=1 seed=1: round 2/9"]
    rows[0] |= {"seeds": 1, "metrics": {"loss": {"mean": 0.25, "std": None}}}
    tell("rate=1 seed=0", "loss 0.25", True)
    tell("rate=1 seed=1", "round 3/9", False)
    assert lines()[0] == "rate=1 seed=1: round 3/9"
    assert [cell.strip() for cell in lines()[4].strip("│").split("│")] == ["1", "1", "2", "0.25"]


def test_a_task_without_validation_samples_says_so(dpfedls):
    grid = ["--grid", "server_rate=1.0", "--seeds", 1, "--set", "task=digits-logistic"]
    code, out, err = dpfedls(*CALL, *grid)
    assert code == 0, err
    assert "by the task's test samples" in out
    assert "\nrun it: dpfedls run synthetic --set plan.num_clients=40" in out
    assert dpfedls(*CALL, *grid, "--highest", "a", "--lowest", "b")[0] == 2
