from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Message, MetricRecord
from safetensors.numpy import load_file
from scipy import stats

import dpfedls
from dpfedls import BudgetExhausted, InputError
from dpfedls.auditing.kept import kept_problems
from dpfedls.flower import DPFedLS, client_app
from dpfedls.flower.promise import NOISE_ALONE
from dpfedls.privacy.account import read_ledger
from dpfedls.privacy.wording import text
from dpfedls.randomness import SeededStreams
from dpfedls.runs import folder as folders
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.checkpoint import FILE, Checkpoint
from dpfedls.runs.verify import read_statement, verify
from dpfedls.tasks.task import make_task

SMALL = ["plan.num_clients=60", "plan.rounds=6", "plan.noise_multiplier=1.0"]


def small(*settings):
    return recipes.read("synthetic", [*SMALL, *settings])


def task_of(recipe):
    return make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))


def app_of(recipe, **options):
    """Everybody on some node: person j on node j modulo the number of nodes."""
    task = task_of(recipe)

    def people(context):
        i, n = context.node_config["partition-id"], context.node_config["num-partitions"]
        return {j: task.data.client(j) for j in range(i, recipe.plan.num_clients, n)}

    return client_app(recipe, model=task.model, people=people, **options)


def strategy_of(recipe, folder, **options):
    task = task_of(recipe)
    return DPFedLS(recipe, model=task.model, test=task.test, folder=folder, **options)


def deploy(recipe, folder, nodes=3, **options):
    strategy = strategy_of(recipe, folder, **options)
    grid = FakeGrid(app_of(recipe), nodes)
    strategy.start(grid, timeout=0)
    return strategy, grid


def watched(strategy, watcher):
    """Also tell ``watcher`` of each released round."""
    strategy.run.watch = [*strategy.run.watch, watcher]


def close(strategy):
    """Give the folder of a run that is not gone through free."""
    strategy.run.folder.close()


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_with_the_same_streams_simulation_and_deployment_agree_exactly(tmp_path, sampler):
    """One node that holds everybody trains the very blocks that the simulation trains."""
    sampling = 'plan.sampler={kind="fixed", cohort=7}' if sampler == "fixed" else "seed=3"
    recipe = small(sampling)
    runs.start(recipe, tmp_path / "simulated")
    strategy, _ = deploy(recipe, tmp_path / "deployed", nodes=1, reveal_cohorts=True)
    for name, tensor in weights(tmp_path / "simulated").items():
        assert np.array_equal(tensor, weights(tmp_path / "deployed")[name])
    simulated, deployed = (folders.read_rounds(tmp_path / n) for n in ("simulated", "deployed"))
    assert [(r.accuracy, r.loss, r.epsilon) for r in simulated] == [
        (r.accuracy, r.loss, r.epsilon) for r in deployed
    ]
    assert verify(tmp_path / "deployed") == verify(tmp_path / "simulated")
    assert strategy.outcome.summary()["accuracy"] == simulated[-1].accuracy


@pytest.mark.parametrize("nodes", [4, 60])
def test_how_people_are_spread_over_nodes_changes_nothing_but_rounding(tmp_path, nodes):
    """60 nodes hold one person each."""
    runs.start(small(), tmp_path / "simulated")
    deploy(small(), tmp_path / "deployed", nodes=nodes)
    for name, tensor in weights(tmp_path / "simulated").items():
        np.testing.assert_allclose(weights(tmp_path / "deployed")[name], tensor, atol=1e-6)


def test_deployed_and_simulated_runs_agree_in_distribution(tmp_path):
    """The final loss of 24 deployed runs against 24 of dpfedls.train, on one federation."""
    recipe = small("plan.rounds=3", "evaluate_every=3", "mode=deployed")
    task, app = task_of(recipe), app_of(recipe)
    simulated, deployed = [], []
    for seed in range(24):
        result = dpfedls.train(
            model=task.model,
            clients=task.data,
            plan=recipe.plan,
            local=recipe.local,
            denoiser=recipe.denoiser,
            test=task.test,
            seed=seed,
        )
        simulated.append(result.loss)
        strategy = strategy_of(recipe, tmp_path / str(seed))
        strategy.start(FakeGrid(app, 2), timeout=0)
        deployed.append(strategy.outcome.summary()["loss"])
    assert len(set(deployed)) == 24  # fresh entropy every time
    # Two-sample Kolmogorov-Smirnov; a right program fails one time in ten thousand. Coarse: that
    # the two share one distribution exactly is what the test with fixed streams shows.
    assert stats.ks_2samp(simulated, deployed).pvalue > 1e-4


def test_the_noise_really_added_is_the_plans(tmp_path):
    """Nobody answers, so a round is noise alone: 40 rounds, each coordinate of known deviation."""
    recipe = small("mode=deployed", "plan.rounds=40", "denoiser.strength=0", "evaluate_every=40")
    strategy = strategy_of(recipe, tmp_path / "r")
    grid = FakeGrid(app_of(recipe), 3)
    grid.spoil = dict.fromkeys(grid.contexts, lambda question, reply: None)
    before, steps = strategy.run.state.params.clone(), []

    def note(line):
        nonlocal before
        steps.append(strategy.run.state.params - before)
        before = strategy.run.state.params.clone()

    watched(strategy, note)
    strategy.start(grid, timeout=0)
    draws = torch.cat(steps).numpy()
    expected = (
        recipe.resolved().plan.noise_stddev(recipe.plan.clip_norm) / recipe.plan.expected_cohort
    )
    # Unseeded: the right scale fails one time in a million; 2/3 and 3/2 of it must fail.
    assert stats.kstest(draws / expected, "norm").pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(draws / (wrong * expected), "norm").pvalue < 1e-9


def test_hundreds_of_rounds(tmp_path):
    recipe = small(
        *("mode=deployed", "plan.rounds=300", "plan.noise_multiplier=4", "evaluate_every=100")
    )
    strategy, grid = deploy(recipe, tmp_path / "r", nodes=2)
    assert strategy.outcome.summary()["rounds"] == 300
    assert strategy.outcome.summary()["mode"] == "deployed"
    assert verify(tmp_path / "r")["valid"], verify(tmp_path / "r")["problems"]
    asked = [m for m in grid.sent if m.metadata.message_type == "train"]
    sampled = sum(len(m.content["ask"]["people"]) for m in asked)
    # Poisson, rate 0.1, 60 people, 300 rounds: mean 1800, deviation 40.
    assert abs(sampled - 1800) < 5 * math.sqrt(300 * 60 * 0.1 * 0.9)


def test_a_reply_holds_the_sum_and_the_round_and_nothing_else(tmp_path):
    _, grid = deploy(small(), tmp_path / "r", nodes=60)
    replies = [m for m in grid.received if m.metadata.message_type == "train"]
    assert replies
    for reply in replies:
        assert set(reply.content) == {"update", "about"}
        assert set(reply.content["about"]) == {"round"}
        assert not reply.content.metric_records
    assert not [m for m in grid.sent if m.metadata.message_type == "evaluate"]


def test_the_cohort_comes_from_the_registered_population_not_from_who_is_connected(tmp_path):
    """With two of three nodes away, the third is asked no more often, and the noise is the same."""
    recipe = small("plan.rounds=50", "evaluate_every=50", 'plan.sampler={kind="fixed", cohort=6}')
    strategy = strategy_of(
        recipe,
        tmp_path / "r",
        people={100 + i: range(i, 60, 3) for i in range(3)},
        reveal_cohorts=True,
    )
    grid = FakeGrid(app_of(recipe), 3)
    grid.away = {101, 102}
    strategy.start(grid, timeout=0)
    sizes = [len(m.content["ask"]["people"]) for m in grid.sent]
    assert {m.metadata.dst_node_id for m in grid.sent} == {100}
    # Hypergeometric with mean 2: were the cohort drawn from those connected, it would be 6.
    assert sum(sizes) / 50 < 3
    assert strategy.outcome.summary()["rounds"] == 50


def test_a_node_that_joins_later_is_asked_then(tmp_path):
    recipe = small("plan.rounds=8")
    strategy = strategy_of(recipe, tmp_path / "r")
    grid = FakeGrid(app_of(recipe), 3)
    grid.away = {102}
    watched(strategy, lambda line: grid.away.clear() if line.round == 3 else None)
    strategy.start(grid, timeout=0)
    asked = [(m.metadata.message_type, m.metadata.dst_node_id) for m in grid.sent]
    assert asked.count(("query", 102)) == asked.count(("query", 100)) == 1
    assert ("train", 102) in asked


def test_nobody_is_held_by_two_nodes(tmp_path, caplog):
    recipe = small("plan.rounds=2")
    task = task_of(recipe)
    people = lambda context: {j: task.data.client(j) for j in range(30)}  # noqa: E731
    strategy = strategy_of(recipe, tmp_path / "r")
    strategy.start(FakeGrid(client_app(recipe, model=task.model, people=people), 2), timeout=0)
    assert "node 101 takes no part: person 0 is held by another node" in caplog.text
    with pytest.raises(InputError, match="held by another node"):
        strategy_of(recipe, tmp_path / "s", people={1: [0, 1], 2: [1]})


def test_a_node_is_loaded_once_and_kept_answers_as_a_fresh_one(tmp_path):
    """Whatever it was asked before, the answer is that of its people and of public values."""
    recipe, loaded = small("plan.rounds=3", "plan.sampler.rate=1.0"), []
    task = task_of(recipe)

    def people(context):
        loaded.append(context.node_id)
        return {j: task.data.client(j) for j in range(60)}

    def made():
        return client_app(recipe, model=task.model, people=people, unprotected_client_metrics=True)

    grid = FakeGrid(made(), 1)
    strategy_of(recipe, tmp_path / "r", unprotected_client_metrics=True).start(grid, timeout=0)
    assert loaded == [100, 100]  # whom it holds, then for all rounds
    for question in [m for m in grid.sent if m.metadata.message_type == "train"]:
        kept, fresh = (app(question, grid.contexts[100]).content for app in (grid.app, made()))
        assert kept.object_id == fresh.object_id


def test_an_empty_federation_still_releases_and_pays(tmp_path):
    strategy, _ = deploy(small("mode=deployed"), tmp_path / "r", nodes=0)
    assert strategy.outcome.summary()["rounds"] == 6
    assert len(read_ledger(tmp_path / "r" / "ledger.sqlite")[1]) == 6


def test_an_exhausted_budget_ends_the_run_cleanly(tmp_path):
    budget = small("plan.sampler.rate=1.0").plan.epsilon(rounds=3)
    strategy, grid = deploy(small(f"budget={budget}", "plan.sampler.rate=1.0"), tmp_path / "r")
    assert len([m for m in grid.sent if m.metadata.message_type == "train"]) == 3 * 3
    assert isinstance(strategy.outcome.exhausted, BudgetExhausted)
    assert strategy.outcome.summary()["rounds"] == 3
    assert verify(tmp_path / "r")["valid"]


def test_a_rate_that_is_left_open_is_said_to_need_samples(tmp_path):
    with pytest.raises(InputError, match="server of a federation holds no samples; give a number"):
        strategy_of(small("server_rate=auto"), tmp_path / "r")


class Crash(Exception):
    pass


@pytest.mark.parametrize("where", ["asking", "paid", "evaluating", "after"])
@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_a_crash_anywhere_resumes_after_the_last_released_round(
    tmp_path, mode, where, caplog, monkeypatch
):
    """Crash in round 4: before or after it was paid for, when it is evaluated, or after that."""
    recipe, folder = small(f"mode={mode}"), tmp_path / "r"
    strategy = strategy_of(recipe, folder)
    grid = FakeGrid(app_of(recipe), 2)

    def crash(*_args, **_kwargs):
        raise Crash

    def arm(line):
        if line.round == 4 and where == "after":
            raise Crash
        if line.round == 3 and where == "asking":
            grid.push_messages = crash
        if line.round == 3 and where == "paid":
            strategy.run.folder.keep = strategy.run.folder.record = crash

        if line.round == 3 and where == "evaluating":
            monkeypatch.setattr("dpfedls.runs.run.evaluate", crash)

    watched(strategy, arm)
    with pytest.raises(Crash):
        strategy.start(grid, timeout=0)
    monkeypatch.undo()
    released = Checkpoint.load(folder).round
    paid = len(read_ledger(folder / "ledger.sqlite")[1])
    assert (released, paid) == {"asking": (3, 3), "paid": (3, 4)}.get(where, (4, 4))

    again, fresh_grid = deploy(recipe, folder, nodes=2)
    first = next(m for m in fresh_grid.sent if m.metadata.message_type == "train")
    assert first.content["ask"]["round"] >= released
    lost = where == "paid"
    assert ("rounds 4 were paid for and then lost" in caplog.text) == lost
    # With fresh noise a lost round is paid again, so the plan's budget ends one round earlier.
    ends_early = lost and mode == "deployed"
    assert again.outcome.summary()["rounds"] == (5 if ends_early else 6)
    assert (again.outcome.exhausted is not None) == ends_early
    assert verify(folder)["valid"], verify(folder)["problems"]
    if mode == "simulation":
        runs.start(recipe, tmp_path / "whole")
        for name, tensor in weights(tmp_path / "whole").items():
            np.testing.assert_allclose(weights(folder)[name], tensor, atol=1e-6)


def test_a_finished_run_is_not_run_again(tmp_path):
    deploy(small(), tmp_path / "r")
    before = (tmp_path / "r" / FILE).read_bytes()
    _, grid = deploy(small(), tmp_path / "r")
    assert not [m for m in grid.sent if m.metadata.message_type == "train"]
    assert (tmp_path / "r" / FILE).read_bytes() == before


def test_another_recipe_does_not_get_the_folder(tmp_path):
    deploy(small(), tmp_path / "r")
    with pytest.raises(InputError, match="another recipe"):
        deploy(small("plan.noise_multiplier=0.5"), tmp_path / "r")


def test_two_servers_do_not_share_a_folder(tmp_path):
    first = strategy_of(small(), tmp_path / "r")
    with pytest.raises(InputError, match="in use by another process"):
        strategy_of(small(), tmp_path / "r")
    close(first)


def test_client_metrics_leave_only_when_asked_for_in_as_many_words(tmp_path, caplog):
    recipe = small("plan.rounds=2")
    app = app_of(recipe, unprotected_client_metrics=True)
    strategy = strategy_of(recipe, tmp_path / "r", unprotected_client_metrics=True)
    result = strategy.start(FakeGrid(app, 3), timeout=0)
    assert "WITHOUT NOISE" in caplog.text
    assert set(result.evaluate_metrics_clientapp) == {1, 2}
    assert 0 < result.evaluate_metrics_clientapp[2]["accuracy"] <= 1
    silent = strategy_of(recipe, tmp_path / "s")
    grid = FakeGrid(app, 3)
    assert not silent.start(grid, timeout=0).evaluate_metrics_clientapp
    assert not silent.aggregate_evaluate(1, [_metrics_from(grid)])


def _metrics_from(grid):
    from flwr.app import RecordDict

    question = grid.sent[0]
    metrics = MetricRecord({"samples": 5, "loss": 1.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=question)


def test_one_persons_data_never_decides_whether_anothers_counts(tmp_path):
    """People with NaN, wrong labels, other shapes: each counts as zero, alone."""
    recipe = small(
        "plan.rounds=1", "plan.sampler.rate=1.0", "denoiser.strength=0", "evaluate_every=1"
    )
    task = task_of(recipe)
    good = {j: task.data.client(j) for j in range(60)}
    x, y = good[0]
    bad = {
        0: (x * math.nan, y),
        1: (x, y + 1000),
        2: (x[:, :5], y),
        3: (x, y[:-1]),
        4: (x, y.float()),
    }

    def released(people):
        strategy = strategy_of(recipe, tmp_path / str(released.calls))
        released.calls += 1
        strategy.start(
            FakeGrid(client_app(recipe, model=task.model, people=lambda _: people), 1), timeout=0
        )
        return strategy.run.state.params

    released.calls = 0
    without = released({j: pair for j, pair in good.items() if j > 4})
    torch.testing.assert_close(released(good | bad), without, atol=1e-6, rtol=0)


def test_a_nodes_failure_says_nothing_about_its_data(tmp_path, caplog):
    recipe = small("plan.rounds=1", "plan.sampler.rate=1.0")

    def people(context):
        if context.run_id and people.calls:
            raise ValueError("patient 17 has diabetes")
        people.calls += 1
        return {j: task_of(recipe).data.client(j) for j in range(60)}

    people.calls = 0
    app = client_app(recipe, model=task_of(recipe).model, people=people)
    grid = FakeGrid(app, 1)
    with caplog.at_level(logging.WARNING):
        strategy = strategy_of(recipe, tmp_path / "r")
        strategy.start(grid, timeout=0)
    reply = next(m for m in grid.received if m.metadata.message_type == "train")
    assert "diabetes" not in reply.error.reason
    assert "counts as zero: the node reported error" in caplog.text
    assert strategy.outcome.summary()["rounds"] == 1


def test_loaders_that_fail_half_way_are_said_loudly_and_change_nothing_that_is_public(
    tmp_path, caplog
):
    """From round 3 on nobody's samples can be loaded; before, one node's cannot."""
    recipe = small("plan.rounds=4", "plan.sampler.rate=1.0", 'mode="deployed"')
    task, strategy = task_of(recipe), strategy_of(recipe, tmp_path / "r")

    class Loader(dict):
        def __getitem__(self, person):
            if person % 3 == 0 or strategy.run.state.round >= 2:
                raise OSError("the database of ward 7 is down")
            return task.data.client(person)

    def people(context):
        first = context.node_config["partition-id"]
        return Loader.fromkeys(range(first, 60, 3))

    app = client_app(recipe, model=task.model, people=people)
    with caplog.at_level(logging.WARNING):
        strategy.start(FakeGrid(app, 3), timeout=0)
    loud = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    said = [line.partition(", so what is")[0] for line in loud if NOISE_ALONE in line]
    assert said == [f"round {t}: none of the 3 nodes asked counts" for t in (3, 4)]
    assert "person 1 counts as zero: OSError: the database of ward 7 is down" in caplog.text
    assert len(read_ledger(tmp_path / "r" / "ledger.sqlite").entries) == 4
    assert kept_problems(tmp_path / "r") == []
    for path in filter(Path.is_file, (tmp_path / "r").rglob("*")):
        assert b"ward 7" not in path.read_bytes()


def test_flower_settings_that_would_contradict_the_recipe_are_refused(tmp_path):
    strategy = strategy_of(small(), tmp_path / "r")
    with pytest.raises(InputError, match="takes no num_rounds"):
        strategy.start(FakeGrid(app_of(small()), 1), num_rounds=3)
    close(strategy)


@pytest.mark.parametrize("nodes", [1, 60])
def test_adaptive_clipping_deployed_is_what_it_is_simulated(tmp_path, nodes):
    """Norm and indicator travel with the question: the same norms, round by round, and models."""
    recipe = small('plan.clip_norm={kind="adaptive", start=3.0, quantile=0.4}')
    runs.start(recipe, tmp_path / "simulated")
    deploy(recipe, tmp_path / "deployed", nodes=nodes)
    simulated, deployed = (folders.read_rounds(tmp_path / n) for n in ("simulated", "deployed"))
    norms = [line.clip_norm for line in simulated]
    assert len(set(norms)) == 6
    np.testing.assert_allclose([line.clip_norm for line in deployed], norms, rtol=1e-12)
    for name, tensor in weights(tmp_path / "simulated").items():
        np.testing.assert_allclose(weights(tmp_path / "deployed")[name], tensor, atol=1e-6)
        if nodes == 1:
            assert np.array_equal(tensor, weights(tmp_path / "deployed")[name])


def test_any_callable_denoises_and_own_loss_and_metrics_are_used(tmp_path):
    recipe = small("plan.rounds=2")
    error = lambda outputs, targets: float((outputs.argmax(1) != targets).float().mean())  # noqa: E731
    strategy, _ = deploy(
        recipe,
        tmp_path / "r",
        denoiser=lambda release: 0 * release.value,
        metrics={"error": error},
    )
    found = strategy.outcome.summary()["metrics"]
    assert set(found) == {"error", "loss"}
    start = task_of(recipe).model.state_dict()
    for name, tensor in weights(tmp_path / "r").items():
        assert np.array_equal(tensor, start[name])


def test_each_round_shows_where_nobody_set_up_logging(tmp_path):
    """As in Flower's ServerApp process, whose output ``flwr run --stream`` shows."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_strategy import deploy, small
deploy(small("plan.rounds=2"), Path({str(tmp_path / "r")!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for t in (1, 2):
        line = next(text for text in done.stderr.splitlines() if f"round {t}: accuracy" in text)
        assert "ε" in line


FIXED = 'plan.sampler={kind="fixed", cohort=6}'


def test_fixed_size_cohorts_are_refused_unless_asked_for_in_as_many_words(tmp_path):
    with pytest.raises(InputError, match="reveal_cohorts"):
        strategy_of(small(FIXED), tmp_path / "r")
    assert not (tmp_path / "r").exists()
    deploy(small(FIXED), tmp_path / "r", reveal_cohorts=True)
    stated = read_statement(tmp_path / "r")
    releases, one, coalition, server = (row["epsilon"] for row in stated["observers"])
    assert stated["epsilon"] == releases < one < coalition
    assert server is None  # JSON has no infinity
    assert verify(tmp_path / "r")["valid"]
    assert not any("who takes part stays secret" in line for line in stated["assumed"])
    with pytest.raises(InputError, match="another recipe"):  # settings stay
        deploy(small(FIXED, "nodes.reveal_cohorts=true", "nodes.most_samples=9"), tmp_path / "r")


def test_a_poisson_run_promises_nodes_what_it_promises_everybody(tmp_path):
    deploy(small(), tmp_path / "r")
    stated = read_statement(tmp_path / "r")
    assert len({row["epsilon"] for row in stated["observers"][:3]}) == 1
    assert any("clips each of them" in line for line in stated["assumed"])
    assert not any(line.startswith("every update has") for line in stated["enforced"])
    assert stated["mechanism"]["most_samples"] == 10_000


def test_metrics_without_noise_mark_the_run(tmp_path):
    recipe = small("plan.rounds=2")
    app = app_of(recipe, unprotected_client_metrics=True)
    strategy = strategy_of(recipe, tmp_path / "r", unprotected_client_metrics=True)
    strategy.start(FakeGrid(app, 3), timeout=0)
    stated = read_statement(tmp_path / "r")
    assert "accuracy and loss" in stated["left_without_noise"]
    assert "WITHOUT NOISE" in stated["not_covered"][0]
    assert "**Left WITHOUT NOISE" in text(stated)
    assert verify(tmp_path / "r")["left_without_noise"] == stated["left_without_noise"]
    with pytest.raises(InputError, match="another recipe"):  # nor is the mark taken off later
        strategy_of(recipe, tmp_path / "r")
    deploy(recipe, tmp_path / "s")
    assert read_statement(tmp_path / "s")["left_without_noise"] is None


def test_deployed_rounds_say_nothing_about_time(tmp_path):
    strategy, _ = deploy(small("mode=deployed"), tmp_path / "r")
    assert strategy.outcome.summary()["seconds_per_round"] is None
    assert "seconds" not in (tmp_path / "r" / "rounds.jsonl").read_text()


def test_a_run_on_nodes_is_not_resumed_on_one_machine(tmp_path):
    deploy(small(), tmp_path / "r")
    with pytest.raises(InputError, match="run on nodes"):
        runs.resume(tmp_path / "r")


def test_the_folder_holds_what_a_run_folder_may_hold_and_no_more(tmp_path):
    """What ``dpfedls audit FOLDER`` looks at, of a federation; then with seconds in its log."""
    folder = tmp_path / "r"
    deploy(small("plan.rounds=2", 'mode="deployed"'), folder)
    assert kept_problems(folder) == []
    line = (folder / "rounds.jsonl").read_bytes()
    (folder / "rounds.jsonl").write_bytes(line.replace(b"{", b'{"seconds":1.0,', 1))
    assert "'seconds' should not be in rounds.jsonl" in kept_problems(folder)


def test_deployed_noise_is_nobodys_to_draw_again(tmp_path):
    deployed = small("mode=deployed")
    with pytest.raises(InputError, match=r"streams is SeededStreams.*leave streams out"):
        strategy_of(deployed, tmp_path / "r", streams=SeededStreams(0))
    assert not (tmp_path / "r").exists()
