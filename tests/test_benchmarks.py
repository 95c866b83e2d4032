"""The benchmark's runners that need no other environment do the same work."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfedls.parameters import Layout

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import bench  # noqa: E402
import page  # noqa: E402
from runners import logistic, loop, models, ours  # noqa: E402
from workloads import WORKLOADS, Workload, draw  # noqa: E402


def small(name: str) -> Workload:
    """Everybody takes part and nobody adds noise, so that a round has one outcome."""
    return replace(WORKLOADS[name], clients=3, cohort=3, samples=25, epochs=2, noise_multiplier=0.0)


def alike(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """A client's samples are all the same one, so that their order cannot matter."""
    features, targets = draw(workload)
    features[:], targets[:] = features[:, :1], targets[:, :1]
    return features, targets


@pytest.mark.parametrize("name", ["logistic-50", "mlp", "cnn", "lstm"])
@pytest.mark.parametrize("clip_norm", [0.3, 100.0])
def test_the_plain_loop_and_ours_make_the_same_model(name, clip_norm):
    workload = replace(small(name), clip_norm=clip_norm)
    features, targets = alike(workload)
    plain = loop.Federation(workload, features, targets)
    before = plain.params.clone()
    plain.run_round()
    simulation, state = ours.federation(
        workload, ours.our_model(workload.model), ours.people(features, targets), rounds=1
    )
    after = simulation.run_round(state).params
    torch.testing.assert_close(state.params, before, rtol=0, atol=0)
    torch.testing.assert_close(after, plain.params, rtol=0, atol=1e-5)
    assert float((after - before).norm()) > 1e-2, "nothing was learned, so nothing was compared"


def test_logistic_regression_written_out_is_what_autograd_does():
    workload = small("logistic-50")
    features, targets = alike(workload)
    flat = loop.FlatModel(models.make_model("logistic"))
    centre = flat.weights.clone()
    loop.train(flat, centre, torch.from_numpy(features[0]), torch.from_numpy(targets[0]), workload)
    start = [p.detach().numpy() for p in models.make_model("logistic").parameters()]
    trained = logistic.train(start, features[0], targets[0], workload)
    found = np.concatenate([array.reshape(-1) for array in trained])
    np.testing.assert_allclose(found, flat.weights.numpy(), rtol=0, atol=1e-6)
    assert float((flat.weights - centre).norm()) == pytest.approx(workload.clip_norm, rel=1e-5)


@pytest.mark.parametrize(
    "name", ["logistic", "mlp", "cnn", "lstm", "resnet-8", "transformer", "gru"]
)
def test_the_peers_models_are_ours(name):
    theirs, mine = models.make_model(name), ours.our_model(name)
    assert Layout.of(theirs) == Layout.of(mine)
    workload = next(w for w in WORKLOADS.values() if w.model == name)
    features = torch.from_numpy(draw(replace(workload, clients=1))[0][0])
    torch.testing.assert_close(theirs(features), mine(features), rtol=1e-4, atol=1e-5)


def test_the_workloads_are_those_of_the_goals():
    cohorts = {w.cohort for w in WORKLOADS.values() if w.model == "logistic"}
    assert cohorts == {20, 50, 200, 1000}
    dims = {w.model: Layout.of(models.make_model(w.model)).dim for w in WORKLOADS.values()}
    assert dims["logistic"] == 7850
    assert dims["mlp"] == pytest.approx(200_000, rel=0.01)


def test_a_process_reports_its_start_each_round_and_its_memory():
    run = bench._run(Path(sys.executable), "runners.loop", bench._ONE_THREAD, "logistic-20", 2)
    assert len(run["rounds"]) == 2
    assert run["first_round"] > max(run["rounds"]), "it holds the imports and a round"
    data = np.prod((1000, 50, 784)) * 4 / 2**20
    assert data < run["peak_mib"] < 20 * data


def test_the_table_shows_each_system_at_its_best_setting():
    def run(system, setting, repetition, *rounds):
        head = {"workload": "w", "system": system, "setting": setting, "repetition": repetition}
        return head | {"rounds": rounds, "first_round": 9.0, "peak_mib": 1.0}

    lines = bench._summarise(
        "w",
        [
            run(bench.OURS, "a", 0, 1.0, 2.0, 9.0),
            run(bench.OURS, "b", 0, 3.0),
            run("pfl", "c", 0, 50.0),
            run("pfl", "d", 0, 8.0),
            *(run(bench.OURS, "a", r, 2.0 + r) for r in (1, 2)),
            *(run("pfl", "d", r, 8.0 + 4 * r) for r in (1, 2)),
        ],
    )
    assert [(line["system"], line["setting"], line["round"]) for line in lines] == [
        (bench.OURS, "a", 3.0),
        ("pfl", "d", 12.0),
    ]
    assert [line["times_ours"] for line in lines] == [1.0, 4.0]


def test_the_page_gets_the_table_of_the_kept_run_and_keeps_its_words(tmp_path, monkeypatch):
    def line(system, seconds, ratio):
        named = {"workload": "mlp", "system": system, "setting": "2 processes"}
        return named | {"round": seconds, "times_ours": ratio}

    machine = {"cpu": "x", "cores": 2, "torch": "2", "commit": "0123456789", "load_before": 0.0}
    kept = {
        "workloads": {"mlp": {}},
        "repetitions": 3,
        "machine": machine,
        "summary": [line(bench.OURS, 0.005, 1.0), line("pfl", 0.1234, 24.68)],
        "runs": [line("pfl", 0, 0) | {"rounds": [s, s + 9, 0]} for s in (0.1, 0.1234, 0.15)],
    }
    (tmp_path / "cpu.json").write_text(json.dumps(kept))
    monkeypatch.setattr(page, "RESULTS", tmp_path / "cpu.json")
    written = tmp_path / "page.md"
    written.write_text(f"before\n{page.BEGIN}\nstale\n{page.END}\nafter\n")
    page.main(written)
    page.main(written)  # again, on what it wrote itself
    text = written.read_text()
    assert (text[:7], text[-7:]) == ("before\n", "\nafter\n")
    assert "stale" not in text
    assert "| workload | ours | pfl 0.6 |\n" in text
    pfl = "**24.7×** (123 ms <small>100–150</small>)"
    assert f"| mlp | 5.0 ms (2 processes) | {pfl} |" in text
    (tmp_path / "bare.md").write_text("no marks")
    with pytest.raises(SystemExit, match="put them where the table goes"):
        page.main(tmp_path / "bare.md")
    assert page.BEGIN in page.PAGE.read_text("utf-8")
