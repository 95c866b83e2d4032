from __future__ import annotations

import gzip
import json
import subprocess
import sys

import pytest

from dpfedls import __version__ as dpfedls_version
from dpfedls.commands import main, training

SMALL = [
    "--set",
    "plan.num_clients=60",
    "--set",
    "plan.rounds=3",
    "--set",
    "plan.noise_multiplier=1.0",
]
SETTING = ["--clients", "500", "--rate", "0.05", "--sampling", "poisson"]


def answer(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)  # one object and nothing else on stdout


def test_run_resume_verify_statement_and_report(dpfedls, tmp_path):
    ran = answer(dpfedls("run", "synthetic", *SMALL, "--out", "r", "--json"))
    keys = {"run", "task", "rounds", "accuracy", "loss", "epsilon", "delta", "accountant"}
    assert keys | {"noise_multiplier", "strength", "seconds_per_round"} <= set(ran)
    assert (ran["rounds"], ran["strength"], ran["noise_multiplier"]) == (3, 2.0, 1.0)
    resumed = dpfedls("resume", "r", "--json")
    assert answer(resumed)["accuracy"] == ran["accuracy"]
    assert "r holds a finished run: its result is read, nothing is trained" in resumed[2]
    verdict = answer(dpfedls("privacy", "verify", "r", "--json"))
    assert verdict["valid"] is True
    assert verdict["spent_epsilon"] == pytest.approx(ran["epsilon"])
    assert answer(dpfedls("privacy", "statement", "r", "--json"))["epsilon"] == ran["epsilon"]
    assert "# Privacy statement" in dpfedls("privacy", "statement", "r")[1]
    made = answer(dpfedls("report", "r", "--out", "page.html", "--json"))
    assert (tmp_path / made["report"]).read_text().startswith("<!doctype html>")


def test_without_out_runs_never_collide(dpfedls):
    folders = {answer(dpfedls("run", "synthetic", *SMALL, "--json"))["run"] for _ in range(2)}
    assert len(folders) == 2


def interrupted(after):
    """Ctrl-C when that round is shown."""

    def watching(recipe, folder):
        def watch(log):
            if log.round == after:
                raise KeyboardInterrupt

        return [watch]

    return watching


def test_ctrl_c_names_the_folder_and_the_same_command_starts_no_second_run(
    dpfedls, monkeypatch, tmp_path
):
    with monkeypatch.context() as patched:
        patched.setattr(training, "watching", interrupted(after=2))
        code, out, err = dpfedls("run", "synthetic", *SMALL, "--json")
    (folder,) = (tmp_path / "runs").iterdir()
    assert (code, out) == (1, "")
    hint = f"go on with: dpfedls resume runs/{folder.name}\n"
    assert err.endswith(hint)
    code, _, err = dpfedls("run", "synthetic", *SMALL, "--json")
    assert code == 2
    assert f"go on with dpfedls resume runs/{folder.name}, or" in err
    assert err.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == [folder]
    with monkeypatch.context() as patched:
        patched.setattr(training, "watching", interrupted(after=3))
        code, _, err = dpfedls("resume", f"runs/{folder.name}", "--set", "block_size=1")
    assert (code, err.endswith(hint)) == (1, True)
    code, _, err = dpfedls("resume", f"runs/{folder.name}", "--set", "plan.rounds=9")
    assert (code, err.count("\n")) == (2, 1)
    assert "another recipe, which differs in plan; to go on with it give what" in err
    assert answer(dpfedls("resume", f"runs/{folder.name}", "--json"))["rounds"] == 3
    answer(dpfedls("run", "synthetic", *SMALL, "--json"))  # finished: a second one may begin


def test_ctrl_c_before_anything_was_written_says_so(dpfedls, monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfedls.runs.simulate.make_task", interrupt)
    code, _, err = dpfedls("run", "synthetic", *SMALL)
    assert (code, err) == (1, "dpfedls: stopped before the first round; nothing was written\n")
    assert not (tmp_path / "runs").exists()


def test_a_data_file_cut_short_is_named(dpfedls, monkeypatch, tmp_path):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    whole = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 9]) + bytes(9))
    for part in ("train", "t10k"):
        for name in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(whole[:-9])
    monkeypatch.setenv("DPFEDLS_DATA", str(tmp_path / "data"))
    code, _, err = dpfedls("run", "mnist-logistic", "--out", "r")
    assert code == 2
    assert err.startswith(f"dpfedls: {folder / 'train-images-idx3-ubyte.gz'} is damaged or cut")
    assert err.count("\n") == 1


def test_an_end_of_file_elsewhere_is_not_taken_for_ctrl_c(dpfedls, monkeypatch):
    def cut(*_):
        raise EOFError("ended before the end-of-stream marker")

    monkeypatch.setattr("dpfedls.runs.simulate.make_task", cut)
    code, _, err = dpfedls("run", "synthetic", *SMALL)
    assert code == 2
    assert "a file ends too early (ended before" in err


def test_text_for_people(dpfedls):
    code, out, err = dpfedls("run", "synthetic", *SMALL, "--seed", 3, "--device", "cpu")
    assert code == 0
    assert "accuracy" in out
    assert "round 3/3" in err


def test_json_is_strict_even_without_privacy(dpfedls):
    ran = answer(dpfedls("run", "synthetic", *SMALL, "--set", "plan.noise_multiplier=0", "--json"))
    assert ran["epsilon"] is None
    assert ran["private"] is False


def test_a_broken_folder_is_told_and_exits_1(dpfedls, tmp_path):
    answer(dpfedls("run", "synthetic", *SMALL, "--out", "r", "--json"))
    _, out, _ = dpfedls("privacy", "verify", "r")
    assert out.startswith("valid: ε = ")
    assert "add or remove one), simulation" in out
    assert out.count("✓") == 8
    assert "✗" not in out
    report = tmp_path / "r" / "report.html"
    report.write_text(report.read_text().replace("ε = ", "ε = 0."))
    code, out, _ = dpfedls("privacy", "verify", "r")
    assert (code, out.count("✓"), out.count("✗")) == (1, 7, 1)
    assert "report.html is not the file" in out
    (tmp_path / "r" / "ledger.sqlite").unlink()
    code, out, _ = dpfedls("privacy", "verify", "r")
    assert code == 1
    assert out.startswith("NOT valid: ε = ∞")


def test_a_statement_that_does_not_hold_is_not_shown(dpfedls, tmp_path):
    answer(dpfedls("run", "synthetic", *SMALL, "--out", "r", "--json"))
    path = tmp_path / "r" / "privacy.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"epsilon": values["epsilon"] / 2}))
    for json_too in ([], ["--json"]):
        code, out, err = dpfedls("privacy", "statement", "r", *json_too)
        assert (code, out) == (1, "")
        assert "privacy.json says epsilon = " in err


def test_several_runs_are_added_up(dpfedls):
    one, two = (
        answer(dpfedls("run", "synthetic", *SMALL, "--seed", seed, "--out", f"r{seed}", "--json"))
        for seed in (1, 2)
    )
    found = answer(dpfedls("privacy", "total", "r1", "r2", "--json"))
    assert {"epsilon", "delta", "relation", "runs"} <= set(found)
    assert one["epsilon"] < found["epsilon"] < one["epsilon"] + two["epsilon"]
    code, out, _ = dpfedls("privacy", "total", "r1", "r2", "--delta", 1e-3)
    assert code == 0
    assert "at δ = 0.001 for each person (add or remove one)" in out
    assert "assumed: the runs are on the same people" in out


def test_the_version_is_said(dpfedls):
    assert dpfedls("--version") == (0, f"dpfedls {dpfedls_version}\n", "")


@pytest.mark.parametrize(("budget", "rounds"), [(0.4, 2), (0.01, 0)])
def test_an_exhausted_budget_exits_3_and_still_answers(dpfedls, budget, rounds):
    code, out, err = dpfedls("run", "synthetic", *SMALL, "--set", f"budget={budget}", "--json")
    assert code == 3
    assert json.loads(out)["rounds"] == rounds
    assert json.loads(out)["epsilon"] <= budget
    assert "budget exhausted" in err


def test_recipes_and_doctor(dpfedls):
    listed = answer(dpfedls("recipes", "--json"))["recipes"]
    assert {"name", "reproduces", "task"} <= set(listed[0])
    found = answer(dpfedls("doctor", "--json"))
    assert found["ok"] is True
    assert dpfedls("recipes")[1].count("\n") == len(listed)
    assert "dense solve" in dpfedls("doctor")[1]


def test_a_broken_machine_is_told_by_the_doctor(dpfedls, monkeypatch):
    monkeypatch.setenv("DPFEDLS_DATA", "/nowhere")
    code, out, _ = dpfedls("doctor")
    assert code == 1
    assert "broken" in out


def test_privacy_epsilon_noise_and_rounds_agree(dpfedls):
    noise = answer(
        dpfedls(
            "privacy",
            "noise",
            "--epsilon",
            2,
            *SETTING,
            "--rounds",
            30,
            "--clip-norm",
            0.3,
            "--json",
        )
    )
    assert noise["noise_stddev"] == pytest.approx(0.3 * noise["noise_multiplier"])
    assert noise["delta"] == pytest.approx(500**-1.1)
    z = noise["noise_multiplier"]
    cost = answer(
        dpfedls("privacy", "epsilon", *SETTING, "--rounds", 30, "--noise-multiplier", z, "--json")
    )
    assert 2 * 0.999 <= cost["epsilon"] <= 2
    assert set(cost) == {"epsilon", "delta", "accountant", "relation", "noise_multiplier"}
    most = answer(
        dpfedls("privacy", "rounds", "--epsilon", 2, *SETTING, "--noise-multiplier", z, "--json")
    )
    assert most["rounds"] == 30


def test_closed_form_tells_lambda_and_alpha(dpfedls):
    """Theorem 2 at ε 7: ν = .2928 for clip .3, λ = .045 (measured in November 2026)."""
    found = answer(
        dpfedls(
            "privacy",
            "noise",
            "--epsilon",
            7,
            *SETTING,
            "--rounds",
            30,
            "--clip-norm",
            0.3,
            "--accountant",
            "closed-form",
            "--json",
        )
    )
    assert found["noise_stddev"] == pytest.approx(0.2928, abs=1e-4)
    assert found["lambda"] == pytest.approx(0.045, abs=6e-4)
    assert found["alpha"] > 1


def test_the_papers_convention_is_said_to_be_one(dpfedls):
    """SVHN row z = 1.5, uniform sampling: 5.23 as published, 14.19 by RDP for the noise added."""
    found = answer(
        dpfedls(
            "privacy",
            "epsilon",
            "--sampling",
            "fixed",
            "--clients",
            2000,
            "--rate",
            0.05,
            "--rounds",
            200,
            "--noise-multiplier",
            1.5,
            "--accountant",
            "paper",
            "--json",
        )
    )
    assert found["epsilon"] == pytest.approx(5.23, rel=0.015)
    assert "paper" in found["convention"]
    assert found["epsilon_as_added_tight"] < found["epsilon_as_added"] < 14.3


def test_a_folder_in_use_is_refused_before_anything_is_written(dpfedls, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    for command in (["run", "synthetic", *SMALL], ["demo", "--seeds", "1"]):
        code, _, err = dpfedls(*command, "--out", "full")
        assert code == 2
        assert "already holds files" in err
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_the_demo_shows_smoothing_ahead(dpfedls, tmp_path):
    """Two seeds; smoothing was ahead by 3.1 ± 0.33 points over 16, so two alone tell it too."""
    shown = answer(dpfedls("demo", "--seeds", 2, "--out", "d", "--json"))
    assert {"table", "epsilon", "delta", "report"} <= set(shown)
    rows = {row["strength"]: row for row in shown["table"]}
    assert rows[0.0]["method"] == "DP-Fed"
    assert rows[2.0]["accuracy_mean"] > rows[0.0]["accuracy_mean"]
    assert rows[None]["method"] == "automatic"
    assert rows[None]["accuracy_mean"] > rows[0.0]["accuracy_mean"]
    assert shown["epsilon"] == pytest.approx(0.751, abs=0.001)
    assert "polyline" in (tmp_path / "d" / "report.html").read_text()


def test_help_says_what_each_argument_and_option_is():
    def params(command):
        for inner in getattr(command, "commands", {}).values():
            yield from params(inner)
        yield from ((command.name, param) for param in command.params)

    found = list(params(main._command))
    assert sum(param.param_type_name == "argument" for _, param in found) >= 12
    assert [(command, param.name) for command, param in found if not param.help] == []


def test_help_loads_no_torch():
    code = (
        "import sys; sys.argv = ['dpfedls', {}]\n"
        "from dpfedls.commands import main as cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "heavy = {{'torch', 'dp_accounting', 'scipy', 'matplotlib'}} & set(sys.modules)\n"
        "print('loaded:', sorted(heavy))"
    )
    for arguments in (
        "'--version'",
        "'--help'",
        "'run', '--help'",
        "'privacy', 'noise', '--help'",
        "'recipes'",
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(arguments)], capture_output=True, text=True
        )
        assert done.stdout.endswith("loaded: []\n"), (arguments, done.stdout[-200:], done.stderr)


def test_privacy_commands_load_no_torch():
    code = (
        "import sys; sys.argv = ['dpfedls', 'privacy', 'epsilon', '--sampling', 'poisson',"
        " '--clients', '100', '--rate', '0.1', '--rounds', '3', '--noise-multiplier', '2']\n"
        "from dpfedls.commands import main as cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("False\n"), done.stderr


def test_a_new_line_in_a_name_does_not_make_a_second_line_of_an_error(dpfedls):
    code, _, err = dpfedls("privacy", "statement", "a\nb")
    assert code == 2
    assert err.startswith("dpfedls: a\\nb is not a run folder")
    assert err.count("\n") == 1
