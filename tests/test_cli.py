from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dpfedls.commands import main as cli

SMALL = [
    "--set",
    "plan.num_clients=60",
    "--set",
    "plan.rounds=3",
    "--set",
    "plan.noise_multiplier=1.0",
]
SETTING = ["--clients", "500", "--rate", "0.05", "--sampling", "poisson"]


@pytest.fixture
def dpfedls(capsys, monkeypatch, tmp_path):
    """Call the command line in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpfedls", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def answer(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)  # one object and nothing else on stdout


def test_run_resume_verify_statement_and_report(dpfedls, tmp_path):
    ran = answer(dpfedls("run", "synthetic", *SMALL, "--out", "r", "--json"))
    keys = {"run", "task", "rounds", "accuracy", "loss", "epsilon", "delta", "accountant"}
    assert keys | {"noise_multiplier", "strength", "seconds_per_round"} <= set(ran)
    assert (ran["rounds"], ran["strength"], ran["noise_multiplier"]) == (3, 2.0, 1.0)
    again = answer(dpfedls("resume", "r", "--json"))
    assert again["accuracy"] == ran["accuracy"]
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
    (tmp_path / "r" / "ledger.sqlite").unlink()
    code, out, _ = dpfedls("privacy", "verify", "r")
    assert code == 1
    assert "NOT valid" in out


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "syntetic"], "did you mean 'synthetic'"),
        (["run", "synthetic", "--set", "plan.roundz=3"], "did you mean 'plan.rounds'"),
        (["run", "synthetic", "--device", "cuda:9"], "device 'cuda:9' is not there"),
        (["run", "synthetic", "--seed", "-1"], "seed must be"),
        (["run", "svhn-5k"], "DPFEDLS_DATA"),
        (["resume", "nowhere"], "not a run folder"),
        (["privacy", "verify", "nowhere"], "not a run folder"),
        (["privacy", "statement", "nowhere"], "no readable privacy.json"),
        (["report", "nowhere", "--out", "x.html"], "not a run folder"),
        (["demo", "--seeds", "0"], "at least 1"),
        (["privacy", "noise", "--epsilon", "-1", *SETTING, "--rounds", "3"], "epsilon must be"),
        (
            [
                "privacy",
                "epsilon",
                "--sampling",
                "fixed",
                "--clients",
                "100",
                "--rate",
                "0.033",
                "--rounds",
                "3",
                "--noise-multiplier",
                "1",
            ],
            "use --rate 0.03",
        ),
        (
            [
                "privacy",
                "epsilon",
                "--sampling",
                "fixed",
                "--clients",
                "100",
                "--rate",
                "2",
                "--rounds",
                "3",
                "--noise-multiplier",
                "1",
            ],
            "--rate must be in",
        ),
        (
            [
                "privacy",
                "noise",
                "--epsilon",
                "2",
                *SETTING,
                "--rounds",
                "30",
                "--accountant",
                "closed-form",
            ],
            "use accountant 'pld'",
        ),
        (["privacy", "epsilon", "--accountant", "moments"], "moments"),
        (["frobnicate"], "No such command"),
        (["run"], "Missing argument"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(dpfedls, arguments, message, monkeypatch):
    monkeypatch.delenv("DPFEDLS_DATA", raising=False)
    code, out, err = dpfedls(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


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
    assert shown["epsilon"] == pytest.approx(0.751, abs=0.001)
    assert "polyline" in (tmp_path / "d" / "report.html").read_text()


def test_help_loads_no_torch():
    code = (
        "import sys; sys.argv = ['dpfedls', {}]\n"
        "from dpfedls.commands import main as cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "heavy = {{'torch', 'dp_accounting', 'scipy', 'matplotlib'}} & set(sys.modules)\n"
        "print('loaded:', sorted(heavy))"
    )
    for arguments in ("'--help'", "'run', '--help'", "'privacy', 'noise', '--help'", "'recipes'"):
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
