from __future__ import annotations

import importlib
import json
import sys

import pytest

from dpfedls.commands import main as cli
from dpfedls.paper import check, grids, items, table1, trials
from dpfedls.paper.cells import Cell, resolve, run_cells
from dpfedls.paper.item import Options
from dpfedls.paper.results import PAGES, assemble

# Nothing to train, and one noise for all columns, so that eight runs are left to fail.
NOTHING = [
    *("--jobs", "1", "--seeds", "1"),
    *("--set", "task=nothing", "--set", "plan.noise_multiplier=1"),
]


@pytest.fixture
def reproduce(capsys, monkeypatch, tmp_path):
    """Call ``dpfedls reproduce`` in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpfedls", "reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


def test_every_item_has_a_maker_and_a_page():
    for name, (target, title) in items.ITEMS.items():
        module, function = target.split(":")
        made = getattr(importlib.import_module(f"dpfedls.paper.{module}"), function)
        assert callable(made), name
        assert len(title) > 10
    paged = [item for _, page in PAGES.values() for item in page]
    assert sorted(paged) == sorted(items.ITEMS)
    assert len(paged) == 25


def test_an_item_answers_with_files_and_cells(reproduce, tmp_path):
    code, out, _ = reproduce("table1", "--out", "made", "--json")
    assert code == 0
    (item,) = json.loads(out)["items"]
    assert item["item"] == "table1"
    assert len(item["cells"]) == 9
    for file in item["files"]:
        assert (tmp_path / file).is_file()
    text = (tmp_path / "made" / "table1.md").read_text()
    assert "| DP-Fed-LS (this paper) |" in text
    assert "d_σ L² ν₁²/(μ_σ S² ϵ)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel2"], "unknown item 'tabel2'; did you mean 'table2'?"),
        (["table1", "--seeds", "0"], "--seeds must be at least 1"),
        (["table1", "--jobs", "0"], "--jobs must be at least 1"),
        (["table2", "--jobs", "1", "--set", "plan.roundz=1"], "did you mean 'plan.rounds'"),
        (["table2", *NOTHING], "8 of 8 runs failed, the others are finished and kept; mnist-"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(reproduce, arguments, message):
    code, out, err = reproduce(*arguments)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert out == ""


def test_all_makes_what_can_be_made(reproduce, monkeypatch):
    some = {name: items.ITEMS[name] for name in ("table2", "table1")}
    monkeypatch.setattr(items, "ITEMS", some)
    code, out, err = reproduce("all", *NOTHING, "--json")
    assert code == 2
    assert [item["item"] for item in json.loads(out)["items"]] == ["table1"]
    assert "dpfedls: table2: 8 of 8 runs failed" in err


def test_pages_hold_what_is_there_and_name_the_command_for_the_rest(reproduce, tmp_path):
    reproduce("table1", "--out", "made")
    (tmp_path / "made" / "sine.md").write_text("## Sine\n\n![sine](sine.png)\n\nA caption.\n")
    (tmp_path / "made" / "sine.png").write_bytes(b"picture")
    pages = assemble(tmp_path / "made", tmp_path / "docs")
    assert [page.stem for page in pages] == ["mnist", "cnn", "shakespeare", "theory-and-privacy"]
    text = pages[3].read_text()
    assert text.index("## Table 1") < text.index("A caption.")
    assert "Not made yet: `dpfedls reproduce lemmas`." in text
    assert "[table1.json](table1.json)" in text
    assert (tmp_path / "docs" / "sine.png").read_bytes() == b"picture"
    assert json.loads((tmp_path / "docs" / "table1.json").read_text())["item"] == "table1"
    assert pages[0].read_text().count("Not made yet") == 7
    again = assemble(tmp_path, tmp_path / "docs")  # a folder without items: all sections stay
    assert again[3].read_text() == text


def test_results_are_checked_against_what_was_committed(tmp_path, capsys, monkeypatch):
    """Real runs of a toy recipe stand in for Table 2's: unchanged they agree, 20 points off not."""
    small = ("plan.num_clients=60", "plan.rounds=2", "plan.noise_multiplier=1.0")
    cells = []
    for variant, part, column, row in check.CHECKED:
        settings = [*small, f"denoiser.strength={row[-1]}"]
        ((run,),) = run_cells([Cell("synthetic", tuple(settings))], Options(tmp_path, seeds=1))
        place = {"variant": variant, "part": part, "column": column, "row": row}
        cell = {"recipe": "synthetic", "settings": settings}
        cells.append(place | cell | {"accuracy_mean": run.summary["accuracy"]})
    table1.make(Options(tmp_path))
    trial = {"item": "table3", "cell": "σ = 1", "settings": ["plan.rounds=1"], "loss": 2.0}
    monkeypatch.setattr(check, "run_trials", lambda _: [{**trial, "loss": 2.0001}])

    def found(kept):
        committed = {"seeds": 1, "settings": [], "cells": cells}
        (tmp_path / "table2.json").write_text(json.dumps(committed), encoding="utf-8")
        (tmp_path / "trials.json").write_text(json.dumps(kept), encoding="utf-8")
        return check.main(tmp_path), capsys.readouterr().out

    code, out = found([trial])
    assert (code, out.count("agrees"), out.count("DIFFERS")) == (0, 13 + 2 + 1, 0)
    for wrong in ({"loss": 2.001}, {"settings": ["plan.rounds=2"]}):
        code, out = found([{**trial, **wrong}])
        assert (code, out.count("DIFFERS")) == (1, 1)
    cells[1]["accuracy_mean"] += 0.2
    code, out = found([trial])
    assert (code, out.count("DIFFERS")) == (1, 1)
    assert check.main(tmp_path / "none") == 2


def test_there_is_a_trial_of_a_cell_of_every_table_that_trains_for_hours(tmp_path):
    assert list(trials.TRIALS) == ["table3", "table4", "table5", "table6"]
    for item, (labels, settings) in trials.TRIALS.items():
        places = list(grids.places(item, grids.read(item, grids.Grid)))
        (place,) = (
            p for p in places if (p.variant, p.part, p.row, p.column) == ("as published", *labels)
        )
        whole, trial = (
            resolve(Cell(place.cell.recipe, (*place.cell.settings, *own)), 0, Options(tmp_path))
            for own in ((), settings)
        )
        assert trial.denoiser == whole.denoiser  # the cell's own method
        assert trial.plan.is_private
        assert trial.plan.rounds == 1


def test_a_label_for_an_item_without_cells_and_a_device_that_is_not_there(reproduce):
    code, _, err = reproduce("lemmas", "--only", "Poisson")
    assert code == 2
    assert "--only 'Poisson' has no meaning for lemmas" in err
    code, _, err = reproduce("table2", "--device", "abacus")
    assert code == 2
    assert "device 'abacus' is not there" in err
    assert "runs failed" not in err
