"""Run folders are lost with their machine: --finished keeps what an item's earlier file has."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpfedls import InputError
from dpfedls.paper import svhn_cells, tables
from dpfedls.paper.cells import Cell, run_cells
from dpfedls.paper.figures import attack, stability
from dpfedls.paper.item import Options
from dpfedls.paper.items import make
from dpfedls.runs.folder import read_recipe

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SLIM = ("recipe.toml", "rounds.jsonl", "privacy.json", "diagnostics.jsonl", "made-by.jsonl")
# A column of Table 2, or a panel of a figure, in parts of a second.
TOY = (
    *("task=synthetic-logistic", "plan.num_clients=60", "plan.rounds=2", "plan.noise_multiplier=1"),
    *("plan.sampler={kind='poisson', rate=0.5}", "evaluate_every=1", "diagnose=true"),
    *("local.epochs=1", "local.precision=float32"),
)
COLUMN = ("as published", "Poisson", "ε 6")


def facts_of(out, item):
    return json.loads((out / f"{item}.json").read_text(encoding="utf-8"))


def write(out, item, facts):
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{item}.json").write_text(json.dumps(facts), encoding="utf-8")


def carry(made, out, chosen):
    """Bring the chosen runs, without their models, as one does from a machine given back."""
    for folder in (made / "runs").iterdir():
        if chosen(read_recipe(folder)):
            (out / "runs" / folder.name).mkdir(parents=True)
            for name in SLIM:
                shutil.copy(folder / name, out / "runs" / folder.name / name)


def without_seeds(lines):
    return [{k: v for k, v in line.items() if k != "seeds"} for line in lines]


@pytest.mark.parametrize(
    ("item", "page"),
    [
        *((f"table{n}", "cnn") for n in (3, 4, 5)),
        *(("table6", "shakespeare"), ("shakespeare-curves", "shakespeare")),
        *(("svhn-cells", "cnn"), ("stability", "cnn"), ("attack", None)),  # edited by hand
    ],
)
def test_a_committed_file_alone_gives_its_own_cells_and_page(item, page, tmp_path):
    shutil.copy(RESULTS / f"{item}.json", tmp_path)
    old = facts_of(tmp_path, item)
    settings = tuple(old["settings"])
    only = ("Poisson",) if item != "svhn-cells" and "Poisson" in str(old["cells"][0]) else ()
    made = make(item, Options(tmp_path, 1, "cuda", settings=settings, only=only, finished=True))
    new = facts_of(tmp_path, item)
    assert new["cells"] == old["cells"]
    if "data" in old:
        assert without_seeds(new["data"]["lines"]) == without_seeds(old["data"]["lines"])
    for name in ("seeds", "title", "made_by", "runs", "training_seconds"):
        assert new[name] == old[name], name
    assert "--only" not in new["command"]  # the page shows more than was asked for
    if page:
        text = made.files[-1].read_text(encoding="utf-8")
        assert text.split("\nMade by")[0] in (RESULTS / f"{page}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A column of Table 2 with two seeds."""
    out = tmp_path_factory.mktemp("toy")
    options = Options(out, seeds=2, settings=TOY, only=COLUMN)
    tables.table2(options)
    return replace(options, finished=True), facts_of(out, "table2")


def earlier(toy, kept):
    """The toy's file as it would be with these seeds of each row only."""
    whole = json.loads(json.dumps(toy[1]))
    pairs = zip(whole["cells"], whole["data"]["lines"], strict=True)
    pairs = [pair for pair in pairs if pair[0]["row"] in kept]
    for cell, line in pairs:
        seeds = kept[cell["row"]]
        cell["accuracies"] = [cell["accuracies"][seed] for seed in seeds]
        for curve in ("rounds", "test_accuracy"):
            line[curve] = [line[curve][seed] for seed in seeds]
        cell["seeds"] = seeds
    cells, lines = ([pair[k] for pair in pairs] for k in (0, 1))
    runs = sum(map(len, kept.values()))
    made = {"made_by": ["commit lost on abacus"], "training_seconds": 1000, "runs": runs}
    return whole | made | {"cells": cells, "data": {"lines": lines}, "seeds": 2}


def test_a_seed_and_a_cell_are_added_to_an_earlier_table(toy, tmp_path):
    """In the file: σ 0 seed 0, σ 1 both seeds. In folders: σ 0 seed 1, σ 1 seed 0, σ 2 seed 0."""
    options, whole = toy
    before = earlier(toy, {"σ = 0": [0], "σ = 1": [0, 1]})
    before["cells"][1]["accuracies"] = [0.5, 0.25]  # a folder that is there wins over the file
    write(tmp_path, "table2", before)
    brought = {(0, 1), (1, 0), (2, 0)}
    carry(options.out, tmp_path, lambda r: (r.denoiser.strength, r.seed) in brought)
    options = replace(options, out=tmp_path)
    item = tables.table2(options)
    zero, one, two = item.cells
    assert zero == whole["cells"][0]
    assert [cell["seeds"] for cell in item.cells] == [[0, 1], [0, 1], [0]]
    assert one["accuracies"] == [whole["cells"][1]["accuracies"][0], 0.25]
    assert one["accuracy_mean"] == pytest.approx(sum(one["accuracies"]) / 2)
    assert two["accuracies"] == whole["cells"][2]["accuracies"][:1]
    facts = facts_of(tmp_path, "table2")
    curves = [line["test_accuracy"] for line in facts["data"]["lines"]]
    theirs = [line["test_accuracy"] for line in whole["data"]["lines"]]
    assert curves == [theirs[0], theirs[1], theirs[2][:1]]
    assert facts["runs"] == 3 + 2  # σ 1 seed 0 is in both
    assert 1000 <= facts["training_seconds"] < 1060
    assert facts["made_by"] == ["commit lost on abacus", *whole["made_by"]]
    text = item.files[1].read_text(encoding="utf-8")
    assert text.count("; 1 seed)") == 1
    tables.table2(options)  # once more: nothing is counted twice
    assert facts_of(tmp_path, "table2") == facts


def test_what_is_not_asked_for_is_kept_and_its_run_not_looked_at(toy, tmp_path):
    before = earlier(toy, {"σ = 0": [0], "σ = 1": [0]})
    before["cells"][0]["accuracies"] = [0.5]
    write(tmp_path, "table2", before)
    carry(toy[0].out, tmp_path, lambda r: r.denoiser.strength in {0, 3})
    item = tables.table2(replace(toy[0], out=tmp_path, only=(*COLUMN, "σ = 3"), seeds=1))
    assert [(c["row"], c["seeds"]) for c in item.cells] == [
        ("σ = 0", [0]), ("σ = 1", [0]), ("σ = 3", [0])
    ]  # fmt: skip
    assert item.cells[0]["accuracies"] == [0.5]
    assert "--seeds 2" in facts_of(tmp_path, "table2")["command"]


def test_runs_of_a_table_may_be_evaluated_in_other_rounds(toy, tmp_path):
    """Only the last round stands in a table; curves that are drawn together are refused below."""
    before = earlier(toy, {"σ = 0": [0, 1], "σ = 1": [1]})
    before["settings"] = [s for s in before["settings"] if "evaluate" not in s]
    before["settings"].append("evaluate_every=2")
    for line in before["data"]["lines"]:
        line["rounds"] = [[2] for _ in line["rounds"]]
        line["test_accuracy"] = [curve[-1:] for curve in line["test_accuracy"]]
    write(tmp_path, "table2", before)
    carry(toy[0].out, tmp_path, lambda r: (r.denoiser.strength, r.seed) == (1, 0))
    item = tables.table2(replace(toy[0], out=tmp_path))
    assert item.cells == toy[1]["cells"][:2]
    lines = facts_of(tmp_path, "table2")["data"]["lines"]
    assert [line["rounds"] for line in lines] == [[[2], [2]], [[1, 2], [2]]]
    assert [[*map(len, line["test_accuracy"])] for line in lines] == [[1, 1], [2, 1]]
    text = item.files[1].read_text(encoding="utf-8")
    assert "`plan.rounds=2`" in text
    assert "`evaluate_every=1`" not in text.split("Made by")[0]


def changed(facts, where, value):
    *path, last = where
    place = facts
    for step in path:
        place = place[step]
    place[last] = value
    return facts


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["settings"], ["plan.rounds=9"], "made with --set plan.rounds=9 and this call with --set"),
        (["settings"], [], "was made without --set and this call with"),
        (["item"], "table3", "is not what dpfedls reproduce table2 writes"),
        (["cells"], [], "is not what dpfedls reproduce table2 writes"),
        (["cells", 0, "accuracies"], [], "is not what dpfedls reproduce table2 writes"),
        (["cells", 0, "settings"], ["denoiser.strength=9"], "σ = 0 by mnist.*which today is"),
        (["data", "lines", 0, "rounds"], [1, 2], "is not what dpfedls reproduce table2 writes"),
        (["title"], "Table 2: abacus", "has title 'Table 2: abacus', the runs beside it ask"),
    ],
)
def test_what_does_not_belong_together_is_refused(toy, tmp_path, where, value, message):
    write(tmp_path, "table2", changed(earlier(toy, {"σ = 0": [0]}), where, value))
    carry(toy[0].out, tmp_path, lambda r: (r.denoiser.strength, r.seed) == (0, 1))
    before = (tmp_path / "table2.json").read_bytes()
    with pytest.raises(InputError, match=message) as refused:
        tables.table2(replace(toy[0], out=tmp_path))
    assert "\n" not in str(refused.value)
    assert (tmp_path / "table2.json").read_bytes() == before


def test_a_cell_that_a_table_has_not_is_not_lost_and_no_file_is_no_table(toy, tmp_path):
    facts = earlier(toy, {"σ = 0": [0]})
    for part in (facts["cells"], facts["data"]["lines"]):
        part[0]["row"] = "σ = 9"
    write(tmp_path, "table2", facts)
    with pytest.raises(InputError, match=r"has a cell .*σ = 9.* that table2 has not"):
        tables.table2(replace(toy[0], out=tmp_path))
    (tmp_path / "table2.json").write_text("cut sh", encoding="utf-8")
    with pytest.raises(InputError, match="is not what dpfedls reproduce table2 writes"):
        tables.table2(replace(toy[0], out=tmp_path))


def test_without_finished_the_earlier_file_is_not_looked_at(toy, tmp_path):
    write(tmp_path, "table2", {"item": "anything"})
    carry(toy[0].out, tmp_path, lambda r: True)
    tables.table2(replace(toy[0], out=tmp_path, finished=False))
    assert facts_of(tmp_path, "table2")["cells"] == toy[1]["cells"]


def test_a_figure_goes_on_from_its_file_with_cells_missing(tmp_path):
    """Stability: z 2 in the file, a method of z 3 in a folder. Attack: non-DP alone is no panel."""
    settings = tuple(s for s in TOY if "noise" not in s)
    options = Options(tmp_path / "made", seeds=1, settings=settings)
    out = tmp_path / "out"
    make("stability", replace(options, only=("z = 2", "rate 0.05")))
    write(out, "stability", facts_of(options.out, "stability"))
    run_cells([stability._cell(3.0, 0.1, 1.0, 1.0)], replace(options, out=out))
    whole, first = facts_of(out, "stability"), ["data", "lines", 0, "rounds"]
    write(out, "stability", changed(facts_of(out, "stability"), first, [1, 3]))
    with pytest.raises(InputError, match="not evaluated in the same rounds"):
        make("stability", replace(options, out=out, finished=True))
    write(out, "stability", whole)
    item = make("stability", replace(options, out=out, finished=True))
    found = [(c["noise_multiplier"], c["learning_rate"], c["strength"]) for c in item.cells]
    assert found == [(2, 0.05, 0), (2, 0.05, 1), (3, 0.1, 1)]
    assert facts_of(out, "stability")["runs"] == 3
    assert " of 1 settings (DP-Fed" in item.files[3].read_text(encoding="utf-8")
    make("attack", replace(options, only=("Poisson", "z = 1"), seeds=2))
    facts = facts_of(options.out, "attack")
    for line in facts["data"]["lines"]:  # as files were before lines named their seeds and ε
        for name in ("seeds", "epsilon", "delta"):
            line.pop(name)
    write(out, "attack", facts)
    carry(options.out, out, lambda r: not r.plan.is_private)
    item = make("attack", replace(options, out=out, finished=True))
    assert item.cells == facts["cells"]
    assert "Means over 2 seeds" in item.files[3].read_text(encoding="utf-8")
    noisier = attack._cell("svhn-attack", 500, "Poisson", 1.3, "DP-Fed")
    run_cells([noisier], replace(options, out=out, seeds=2))
    for folder in (out / "runs").iterdir():
        if not read_recipe(folder).plan.is_private:
            shutil.rmtree(folder)
    item = make("attack", replace(options, out=out, finished=True))
    found = [(c["noise_multiplier"], c["method"]) for c in item.cells]
    assert found[-2:] == [(1.3, "non-DP"), (1.3, "DP-Fed")]  # the file's: z plays no part in it


def test_curves_of_one_method_alone_say_nothing_of_the_other(toy, tmp_path):
    options = replace(toy[0], out=tmp_path, only=("Poisson", "σ = 1"), finished=False)
    item = make("mnist-curves", options)
    text = item.files[3].read_text(encoding="utf-8")
    assert "DP-Fed is" not in text
    (folder, _) = (tmp_path / "runs").iterdir()
    (folder / "diagnostics.jsonl").unlink()
    with pytest.raises(InputError, match=r"diagnostics.jsonl has 0 of 2 evaluated rounds"):
        make("mnist-curves", replace(options, finished=True))


def test_cells_of_svhn_are_added_to_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(svhn_cells, "TASK", "synthetic-logistic")
    options = Options(tmp_path / "made", seeds=2, settings=TOY, finished=True)
    with pytest.raises(InputError, match="no finished run of svhn-cells"):
        svhn_cells.make(options)
    free = ("plan.noise_multiplier=0", "plan.clip_norm=inf")
    cells = [
        Cell("synthetic", (f"denoiser={{kind='laplacian', strength={s}, order='BCWH'}}", *own))
        for s, own in ((0.0, ()), (1.0, ()), (0.0, free))
    ]
    run_cells(cells, replace(options, settings=TOY[:3] + TOY[4:], finished=False))
    whole = svhn_cells.make(replace(options, settings=()))
    everything = facts_of(options.out, "svhn-cells")
    facts = json.loads(json.dumps(everything)) | {"runs": 3}
    facts["cells"].pop()
    del facts["cells"][0]["accuracy_by_seed"]["1"], facts["cells"][0]["validation_by_seed"]["1"]
    out = tmp_path / "out"
    write(out, "svhn-cells", facts)
    carry(options.out, out, lambda r: r.seed == 1 or r.denoiser.strength == 1)
    item = svhn_cells.make(replace(options, out=out, settings=()))
    assert item.cells == whole.cells
    assert facts_of(out, "svhn-cells")["cells"] == everything["cells"]
    assert facts_of(out, "svhn-cells")["runs"] == 6


def test_items_that_cannot_be_shown_in_part_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"--finished has no meaning for lemmas.*svhn-cells"):
        make("lemmas", Options(tmp_path, finished=True))
