from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import mean, stdev

import pytest

from dpfedls import InputError
from dpfedls.runs import sweep
from dpfedls.runs.folder import read_rounds
from dpfedls.runs.grid import axis, points, spread

SMALL = ["--set", "plan.num_clients=40", "--set", "plan.rounds=2"]
GRID = ["--grid", "denoiser.strength=0,2", "--grid", "plan.clip_norm=0.3,0.6"]


def test_commas_inside_a_value_do_not_divide_it():
    assert axis("plan.rounds=10, 20") == ("plan.rounds", ["10", "20"])
    tables = '{ kind = "laplacian", strength = 1 },{kind="identity"}'
    key, values = axis(f"denoiser={tables}")
    assert values == ['{ kind = "laplacian", strength = 1 }', '{kind="identity"}']
    chain = '[{kind="momentum", decay=0.9}]'
    found = points("synthetic", [f"{key}={tables},{chain}"])
    assert [point.recipe.method for point in found][:2] == ["DP-Fed-LS, strength 1", "DP-Fed"]
    assert found[1].settings == {"denoiser": {"kind": "identity"}}


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        (["plan.rounds"], "is not key=v1,v2"),
        (["plan.rounds=1,,2"], "is not key=v1,v2"),
        (["denoiser={kind=1"], "is not key=v1,v2"),
        (["plan.rounds=1,1"], "a value twice"),
        (["plan.rounds=1", "plan.rounds=2"], "names plan.rounds twice"),
        (["seed=1,2"], "--seeds"),
        (["plan.round=1,2"], "did you mean"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(grid, why):
    with pytest.raises(InputError, match=why):
        points("synthetic", grid)


def test_the_mean_is_over_all_runs_or_there_is_none():
    assert spread([{"loss": 1.0}, {"loss": 2.0}])["loss"] == {"mean": 1.5, "std": stdev([1, 2])}
    assert spread([{"loss": 1.0}])["loss"] == {"mean": 1.0, "std": None}
    assert spread([{"loss": 1.0}, {"loss": None}])["loss"]["mean"] is None


def test_every_combination_with_every_seed_and_a_second_call_trains_nothing(
    dpfedls, tmp_path, monkeypatch
):
    call = ["sweep", "synthetic", *GRID, *SMALL, "--seeds", 2, "--out", "s", "--json"]
    code, out, err = dpfedls(*call)
    assert code == 0, err
    assert len(err.splitlines()) == 8  # a line for each run, and nothing else
    found = json.loads(out)
    assert [row["settings"] for row in found["rows"]] == [
        {"denoiser.strength": s, "plan.clip_norm": c} for s in (0, 2) for c in (0.3, 0.6)
    ]
    assert len({run for row in found["rows"] for run in row["runs"]}) == 8
    for row in found["rows"]:
        finals = [read_rounds(Path(run))[-1].accuracy for run in row["runs"]]
        expected = {"mean": mean(finals), "std": stdev(finals)}
        assert row["metrics"]["accuracy"] == pytest.approx(expected)
    with open(found["csv"], encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    accuracies = [row["metrics"]["accuracy"]["mean"] for row in found["rows"]]
    assert [float(line["accuracy_mean"]) for line in lines] == accuracies
    assert all(Path(run).name in Path(found["report"]).read_text() for run in row["runs"])

    def refuse(*_, **__):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(sweep, "start", refuse)
    monkeypatch.setattr(sweep, "resume", refuse)
    assert json.loads(dpfedls(*call)[1]) == found
    text = dpfedls(*call[:-1])[1].splitlines()
    assert text[0].split() == [
        "denoiser.strength",
        "plan.clip_norm",
        "runs",
        "ε",
        "accuracy",
        "loss",
    ]
    assert len(text) == 9


def test_ctrl_c_and_the_same_command_again_is_the_same_sweep(dpfedls, monkeypatch):
    call = ["sweep", "synthetic", "--grid", "plan.clip_norm=0.3,0.6", *SMALL, "--seeds", 1]
    whole = json.loads(dpfedls(*call, "--out", "whole", "--json")[1])

    def interrupted(recipe, folder):
        def watch(record):
            if recipe.plan.clip_norm == 0.6 and record.round == 1:
                raise KeyboardInterrupt

        return [watch]

    with monkeypatch.context() as patched:
        patched.setattr("dpfedls.auditing.diagnostics.watchers", interrupted)
        code, out, err = dpfedls(*call, "--out", "cut", "--json")
    assert (code, out) == (1, "")
    assert err.endswith("dpfedls: stopped; the same command goes on from here\n")
    resumed = []
    go_on = sweep.resume
    monkeypatch.setattr(
        sweep, "resume", lambda folder, *a, **k: resumed.append(folder) or go_on(folder, *a, **k)
    )
    again = json.loads(dpfedls(*call, "--out", "cut", "--json")[1])
    assert len(resumed) == 1
    assert [r["metrics"] for r in again["rows"]] == [r["metrics"] for r in whole["rows"]]


def test_a_run_that_fails_does_not_stop_the_others(dpfedls):
    call = ["sweep", "synthetic", *SMALL, "--seeds", 1, "--json"]
    code, out, err = dpfedls(*call, "--grid", "server_rate=1e39,1.0")
    bad, good = json.loads(out)["rows"]
    assert code == 1
    assert bad["metrics"] == {}
    assert "not finite" in bad["failed"][0]
    assert good["metrics"]["accuracy"]["mean"] > 0
    assert "1 runs failed" in err
    code, out, err = dpfedls(*call, "--grid", "server_rate=1e39")
    assert (code, out) == (2, "")
    assert "all runs failed" in err


def test_a_folder_with_other_code_is_not_run(dpfedls, tmp_path):
    call = ["sweep", "synthetic", *SMALL, "--seeds", 1, "--grid", "plan.clip_norm=0.3"]
    folder = Path(json.loads(dpfedls(*call, "--out", "s", "--json")[1])["rows"][0]["runs"][0])
    (folder / "privacy.json").unlink()
    text = (folder / "recipe.toml").read_text()
    (tmp_path / "evil.py").write_text("raise SystemExit(99)\n")
    (folder / "recipe.toml").write_text(text.replace("synthetic-logistic", "../../evil.py:make"))
    code, _, err = dpfedls(*call, "--out", "s")
    assert code == 2
    assert "names other code of its own" in err
