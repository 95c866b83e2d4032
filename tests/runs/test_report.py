"""The report of a run, and of several: all that it says, from the folder alone."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil

import pytest
from scipy.stats import norm

from dpfedls import InputError, PoissonSampling, PrivacyPlan
from dpfedls.pages.chart import Line, line_chart
from dpfedls.pages.html import from_markdown, table
from dpfedls.privacy.meaning import attack_curve, best_attack, meaning
from dpfedls.privacy.statement import statement
from dpfedls.runs import origin, recipes, simulate
from dpfedls.runs.compare import compare
from dpfedls.runs.curves import csv_link
from dpfedls.runs.folder import read_recipe, read_rounds
from dpfedls.runs.record import RoundRecord
from dpfedls.runs.report import read_notes, write_report
from dpfedls.runs.seal import file_digest
from dpfedls.runs.verify import read_statement


def small(*settings):
    fixed = ["plan.num_clients=60", "plan.rounds=4", "plan.noise_multiplier=1.0"]
    return recipes.read("synthetic", [*fixed, *settings])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two seeds of one recipe, and an adaptive norm under a name that is a script."""
    root = tmp_path_factory.mktemp("runs")
    made = [root / "ls-seed-0", root / "ls-seed-1", root / "<script>alert(1)<"]
    for folder, settings in zip(
        made, (["seed=0"], ["seed=1"], ['plan.clip_norm={kind="adaptive"}']), strict=True
    ):
        simulate.start(small(*settings), folder)
    return made


def downloaded(page):
    (data,) = re.findall(
        r'download="[\w.]+" href="data:text/csv;charset=utf-8;base64,([^"]+)"', page
    )
    return list(csv.DictReader(io.StringIO(base64.b64decode(data).decode())))


def _meaning(folder):
    facts = read_statement(folder)
    return meaning(facts, attack_curve(facts, read_recipe(folder).plan.spent(4)))


def test_the_report_is_made_of_the_folder_alone(folders, tmp_path, monkeypatch):
    """Made again on another day, byte for byte the same: verify seals its bytes."""
    for folder in folders:
        twin = tmp_path / folder.name
        shutil.copytree(folder, twin)
        (twin / "report.html").unlink()
        monkeypatch.setattr(origin, "commit", lambda: "another")
        facts = read_statement(folder)
        del facts["files"]
        write_report(twin, read_recipe(twin), read_rounds(twin), facts)
        assert (twin / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_the_report_says_what_a_reader_asks(folders):
    folder, page = folders[0], (folders[0] / "report.html").read_text("utf-8")
    notes, facts = json.loads((folder / "notes.json").read_bytes()), read_statement(folder)
    for told in (
        *(notes["started"], *notes["made_by"], notes["model"]["class"], folder.name),
        f"{notes['model']['parameters']:,} trained parameters",
        *(
            f"ε at δ = {facts['delta']:.2g}",
            f">{facts['epsilon']:.4g}<",
            "Test accuracy",
            "ε spent",
        ),
        *("4 of 4", _meaning(folder), "signature", "dpfedls privacy verify ls-seed-0"),
        *("dpfedls run ls-seed-0/recipe.toml", "num_clients = 60", "Noise power"),
    ):
        assert told in page, told
    for name in ("recipe.toml", "rounds.jsonl", "ledger.sqlite", "model.safetensors"):
        assert file_digest(folder / name) in page
    assert len(page) < 3_000_000
    assert "Clip norm</th>" in page
    assert "<figcaption>Clip norm" not in page  # one number needs no chart
    assert "<figcaption>Clip norm" in (folders[2] / "report.html").read_text("utf-8")


def test_pages_ask_the_network_for_nothing(folders, tmp_path):
    compare(folders, tmp_path / "page.html")
    for path in (*(folder / "report.html" for folder in folders), tmp_path / "page.html"):
        page = path.read_text("utf-8")
        links = re.findall(r"""(?:href|src|url|action)\s*[=(]\s*["']?([^"'\s)>]+)""", page)
        assert links
        assert all(link.startswith(("#", "data:")) for link in links), links
        assert "<script" not in page
        assert "@import" not in page


def test_the_data_of_a_page_is_the_log(folders, tmp_path):
    rows = downloaded((folders[0] / "report.html").read_text("utf-8"))
    log = read_rounds(folders[0])
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    assert [float(row["accuracy"]) for row in rows] == [line.accuracy for line in log]
    compare(folders, tmp_path / "page.html")
    rows = downloaded((tmp_path / "page.html").read_text("utf-8"))
    assert len(rows) == 12
    assert {row["run"] for row in rows} == {folder.name for folder in folders}


def test_a_long_run_does_not_burst_its_page():
    line = RoundRecord(round=1, epsilon=0.123456789, metrics={"accuracy": 0.123456789})
    assert "Too much for a page" in csv_link("rounds.csv", {"r": [line] * 60_000})
    assert len(csv_link("rounds.csv", {"r": [line] * 20_000})) < 2_000_000


def test_seeds_of_one_recipe_are_one_line_with_a_band(folders, tmp_path):
    compare(folders, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "ls, 2 seeds" in page
    assert page.count('class="band') == page.count("<figure") == 4
    for column in ("δ", "noise", "clip", "rounds", "mode"):
        assert f">{column}</th>" in page
    assert "4 of 4" in page
    assert page.count("Privacy statement<") == 3


def test_two_folders_of_one_name_are_both_shown(folders, tmp_path):
    other = tmp_path / "elsewhere" / folders[0].name
    shutil.copytree(folders[0], other)
    (other / "privacy.json").unlink()
    compare([folders[0], other], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert str(other) in page
    assert "has not finished, so it has no privacy statement" in page
    with pytest.raises(InputError, match="is not a run folder"):
        compare([tmp_path], tmp_path / "no.html")


@pytest.mark.parametrize("damage", [b'{"epsilon": 0.01}', b"[]", b"{"])
def test_a_statement_that_does_not_hold_is_not_shown(folders, tmp_path, damage):
    copy = tmp_path / "copy"
    shutil.copytree(folders[0], copy)
    (copy / "privacy.json").write_bytes(damage)
    compare([copy], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "copy failed verification" in page
    assert "Privacy statement<" not in page


def test_a_resumed_run_keeps_the_day_it_was_started(tmp_path, monkeypatch):
    notes = tmp_path / "notes.json"
    monkeypatch.setattr(origin, "commit", lambda: "first")
    notes.write_text(json.dumps({"engine": "x", **origin.origin(notes), "started": "2020-02-02"}))
    monkeypatch.setattr(origin, "commit", lambda: "second")
    assert origin.origin(notes) == {"started": "2020-02-02", "made_by": ["first", "second"]}
    for damaged in (b'{"started": "2020-0', b'{"started": "\xe4\x20"}'):  # cut short, no UTF-8
        notes.write_bytes(damaged)
        assert origin.origin(notes)["made_by"] == ["second"]
        with pytest.raises(InputError, match=r"notes.json cannot be read"):
            read_notes(tmp_path)


@pytest.mark.parametrize("noise", [0.6, 2.0, 8.0])
def test_the_sentence_never_promises_more_than_the_best_attack(noise):
    """Without sampling one round is a Gaussian, whose best attack is known in closed form."""
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=1.0),
        num_clients=1000,
        rounds=1,
        clip_norm=1.0,
        noise_multiplier=noise,
    )
    facts = statement(plan, mode="deployed")
    curve = attack_curve(facts, plan.spent(1))
    for false in (1e-4, 0.01, 0.1, 0.5, 0.9):
        exact = norm.cdf(norm.ppf(false) + 1 / noise)
        assert exact <= best_attack(curve, false) <= 1
    exact = norm.cdf(norm.ppf(0.01) + 1 / noise)
    told = float(re.search(r"at most ([\d.]+) in 100", meaning(facts, curve))[1])
    assert 100 * exact <= told < 140 * exact
    assert best_attack([], 0.3) == 1.0
    assert "nothing is promised" in meaning(facts, [])


def test_charts_stay_small_and_keep_the_last_round():
    line = [(k, 1 / k) for k in range(1, 5001)]
    drawn = line_chart(
        {"a": Line(line, [(y / 2, 2 * y) for _, y in line])}, "t", "x", "y", log_y=True
    )
    assert len(drawn) < 40_000
    assert ">0.0001</text>" in drawn
    thick = re.search(r'<polyline[^>]*points="([^"]+)"', drawn)[1].split()
    assert thick[-1].startswith("446.0,")  # the right edge
    assert line_chart({"a": Line([(1, float("nan"))])}, "t", "x", "y") == ""
    assert line_chart({"a": Line([(1, 0.0)])}, "t", "x", "y", log_y=True) == ""


def test_markdown_and_tables_escape_what_they_show():
    shown = from_markdown("# <i>\n- **a** & b\n| x | <b> |\n|---|---|\n| 1 | <u> |\n", 1)
    assert "<h2>&lt;i&gt;</h2>" in shown
    assert "<ul><li><b>a</b> &amp; b</li>" in shown
    assert "&lt;u&gt;" in shown
    assert 'class="number">x' in shown
    assert "<td>" not in table(["a"], [])
