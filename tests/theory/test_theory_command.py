from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from dpfedls import InputError
from dpfedls.commands.theory import theory as command
from problems import CASES


def ask(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize("case", CASES)
def test_the_command_answers_with_its_defaults(case):
    result = ask("--case", case, "--json")
    values = json.loads(result.stdout)
    assert {"init", "heterogeneity", "variance", "privacy", "total"} <= set(values)
    assert {"effective_dimension", "rounds"} <= set(values)
    assert values["holds"] is True
    parts = sum(values[part] for part in ("init", "heterogeneity", "variance", "privacy"))
    assert values["total"] == pytest.approx(parts)
    assert 0 < values["total"] < 1


def test_the_command_derives_rounds_and_noise_from_a_budget():
    asked = ("--case", "convex", "--epsilon", "4", "--cohort", "200", "--json")
    both = json.loads(ask(*asked).stdout)
    assert both["holds"] is True
    assert both["delta"] == pytest.approx(1e5**-1.1)
    noise = json.loads(ask(*asked, "--rounds", "20000", "--accuracy", "0.01").stdout)
    assert (noise["rounds"], noise["noise_multiplier"] < both["noise_multiplier"]) == (20_000, True)
    terms = noise["communication"]
    assert terms.pop("total") == pytest.approx(sum(terms.values()))


def test_the_command_in_words():
    said = ask("--case", "strongly-convex", "--rounds", "100", "--accuracy", "0.1").stdout
    assert "NOT met  T ≥ 1/(μ_σ η̃ K)" in said
    assert "met      η_g ≥ 1" in said
    assert "rounds to that gap" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delta", "1e-5"], "--delta and --lambda mean nothing without --epsilon"),
        (["--cohort", "0"], "--cohort must be from 1 to"),
        (["--accuracy", "0"], "accuracy must be > 0"),
        (["--dim", "0"], "dim must be >= 1"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, said):
    result = ask("--case", "convex", *arguments)
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith(said)
    assert "\n" not in str(result.exception)


def test_theory_needs_no_torch():
    code = (
        "import sys\n"
        "from dpfedls.commands.theory import Case, theory\n"
        "assert 'numpy' not in sys.modules\n"  # so that --help is quick
        "theory(Case.CONVEX, json=True)\n"
        "assert not {'torch', 'scipy', 'dp_accounting'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
