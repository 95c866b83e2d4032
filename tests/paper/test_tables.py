from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from dpfedls import FixedSizeSampling, InputError, PoissonSampling
from dpfedls.denoisers import JamesStein, SoftThreshold
from dpfedls.paper import grids, server_rates, svhn_cells, tables
from dpfedls.paper.cells import Cell, Run, resolve, run_cells
from dpfedls.paper.grids import Grid
from dpfedls.paper.item import Options, wanted
from dpfedls.runs.folder import read_recipe

CELLS = {"table2": 64, "table3": 64, "table4": 32, "table5": 48, "table6": 64}
# Every column of Table 2 becomes one small run a strength and sampling, on generated data.
TOY = ("task=synthetic-logistic", "plan.num_clients=60", "plan.rounds=2", "plan.noise_multiplier=1")


@pytest.mark.parametrize("item", CELLS)
def test_every_cell_is_a_valid_recipe_with_the_noise_of_its_variant(item):
    places = list(grids.places(item, grids.read(item, Grid)))
    assert len(places) == CELLS[item]
    for place in places:
        recipe = resolve(place.cell, 0, Options(Path()))
        z, epsilon = recipe.plan.noise_multiplier, place.values["epsilon"]
        if place.variant == "as published" and item != "table2":
            assert (z, recipe.calibrate) == (place.values["noise_multiplier"], None)
        else:
            assert z is None
            assert recipe.calibrate is not None
            assert recipe.calibrate.epsilon == epsilon
            closed = place.variant == "as published"
            assert recipe.calibrate.accountant == ("closed-form" if closed else "pld")
        kind = FixedSizeSampling if place.part == "uniform" else PoissonSampling
        assert isinstance(recipe.plan.sampler, kind)
        if item != "table4":
            assert recipe.denoiser.strength == place.values["strength"]


def test_both_ways_of_sampling_take_the_papers_share_of_the_clients():
    shares = {"table2": 0.05, "table3": 0.05, "table4": 0.05, "table5": 0.05, "table6": 0.2}
    for item, share in shares.items():
        for place in grids.places(item, grids.read(item, Grid)):
            plan = resolve(place.cell, 0, Options(Path())).plan
            assert plan.sampler.sampling_rate(plan.num_clients) == pytest.approx(share)


def test_the_other_estimators_and_orders():
    four = [p.cell for p in grids.places("table4", grids.read("table4", Grid))]
    kinds = [type(resolve(cell, 0, Options(Path())).denoiser) for cell in four]
    assert kinds.count(JamesStein) == kinds.count(SoftThreshold) == 16
    five = list(grids.places("table5", grids.read("table5", Grid)))
    orders = [resolve(p.cell, 0, Options(Path())).denoiser.order for p in five]
    assert orders == [p.column for p in five]
    assert len(set(orders)) == 4


@pytest.mark.parametrize(("item", "first"), [("table3", 32), ("table4", 16)])
def test_what_conclusions_hang_on_is_run_first(item, first):
    """The least and the most noise, with both ways of sampling, in both variants."""
    places = list(grids.places(item, grids.read(item, Grid)))
    chosen = [p for p in places if p.cell.rank == 0]
    assert len(chosen) == first
    assert {p.values["noise_multiplier"] for p in chosen} == {1.0, 1.5}
    assert {(p.variant, p.part) for p in chosen} == {(p.variant, p.part) for p in places}


def test_tables_of_the_cnn_are_made_on_svhn_and_the_stand_in_only_where_asked_for():
    for item in ("table3", "table4", "table5"):
        cells = [p.cell for p in grids.places(item, grids.read(item, Grid))]
        assert {resolve(cell, 0, Options(Path())).task for cell in cells} == {"svhn-cnn"}
        offline = Options(Path(), settings=("task=street-digits-cnn",))
        assert {resolve(cell, 0, offline).task for cell in cells} == {"street-digits-cnn"}


def test_the_published_number_stands_at_its_place():
    found = {p[:4]: p.published for p in grids.places("table3", grids.read("table3", Grid))}
    assert found["as published", "uniform", "σ = 0.5", "ε 6.34"] == 0.8465
    assert found["as it should be", "Poisson", "σ = 1.5", "ε 5.07"] == 0.8735


def test_only_the_cells_asked_for():
    places = list(grids.places("table3", grids.read("table3", Grid)))
    asked = ("as published", "Poisson", "ε 5.07", "ε 2.56")
    found = wanted(places, lambda place: place[:4], Options(Path(), only=asked))
    assert [(p.row, p.column) for p in found] == [
        (f"σ = {s}", f"ε {e}") for s in (0, 0.5, 1, 1.5) for e in (2.56, 5.07)
    ]
    with pytest.raises(InputError, match=r"label 'poison'.*Poisson"):
        wanted(places, lambda place: place[:4], Options(Path(), only=("poison",)))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    out = tmp_path_factory.mktemp("toy")
    return out, tables.table2(Options(out, seeds=2, settings=TOY))


def test_a_table_says_everything_about_every_cell(toy):
    out, item = toy
    assert len(list((out / "runs").iterdir())) == 16  # 4 strengths, 2 samplings, 2 seeds
    raw = json.loads((out / "table2.json").read_text())
    assert raw["cells"] == json.loads(json.dumps(item.cells))
    assert (len(raw["cells"]), raw["runs"], raw["settings"]) == (64, 16, list(TOY))
    assert raw["command"].startswith("dpfedls reproduce table2 --seeds 2 --set task=synthetic")
    assert str(out) not in json.dumps(raw)
    for cell, line in zip(item.cells, raw["data"]["lines"], strict=True):
        assert all(cell[k] == line[k] for k in ("variant", "part", "row", "column"))
        assert line["rounds"] == [[1, 2], [1, 2]]
        assert [by_round[-1] for by_round in line["test_accuracy"]] == cell["accuracies"]
        low, high = sorted(cell["accuracies"])
        assert cell["accuracy_mean"] == pytest.approx((low + high) / 2)
        assert cell["accuracy_std"] == pytest.approx((high - low) / 2**0.5)
        assert cell["noise_multiplier"] == 1
        assert cell["epsilon_as_added"] > 0


def test_a_table_as_text(toy):
    out, item = toy
    text = (out / "table2.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| σ = ")]
    assert len(lines) == 8
    assert "| σ = 0 |" in lines[0]
    assert lines[0].endswith("(84.52) |")
    assert sum(line.count("**") for line in lines) == 2 * 16  # one bold number a column
    first = item.cells[0]
    assert f"{100 * first['accuracy_mean']:.2f} ± {100 * first['accuracy_std']:.2f}" in lines[0]
    plain = [c for c in item.cells if c["strength"] == 0 and c["variant"] == "as published"]
    far = max(abs(c["accuracy_mean"] - c["published"]) for c in plain)
    assert f"is {100 * far:.2f} points" in text
    assert text.count("The DP-Fed cell furthest from") == 1  # the other variant has other noise
    assert text.count("is ahead of no smoothing in ") == 2
    assert "**Overridden in every recipe:** `task=synthetic-logistic`" in text
    assert "the ε of a column's head, are of the paper's own settings." in text


def test_a_table_of_what_is_finished_trains_nothing_and_says_what_is_missing(toy, tmp_path):
    options = Options(tmp_path, seeds=2, settings=TOY, finished=True)
    with pytest.raises(InputError, match="holds no finished run of table2"):
        tables.table2(options)
    kept = 0
    for folder in (toy[0] / "runs").iterdir():
        recipe = read_recipe(folder)
        if (recipe.denoiser.strength, recipe.seed) in {(0.0, 0), (1.0, 0), (1.0, 1)}:
            shutil.copytree(folder, tmp_path / "runs" / folder.name)
            kept += 1
    item = tables.table2(options)
    assert len(list((tmp_path / "runs").iterdir())) == kept == 6
    assert {(cell["row"], len(cell["seeds"])) for cell in item.cells} == {
        ("σ = 0", 1),
        ("σ = 1", 2),
    }
    text = (tmp_path / "table2.md").read_text()
    assert "over 2 seeds, or fewer where the brackets say so" in text
    lines = [line for line in text.splitlines() if line.startswith("| σ = 0 ")]
    assert all(line.count("; 1 seed)") == line.count("(") for line in lines)
    assert "--finished`" in text


def test_rows_stand_as_in_the_paper_whichever_cell_was_made_first(toy, tmp_path):
    """The first column lacks σ = 1 here, which a later one has."""
    raw = json.loads((toy[0] / "table2.json").read_text())
    first = raw["cells"][0]["part"]
    left = [
        i for i, cell in enumerate(raw["cells"]) if (cell["part"], cell["row"]) != (first, "σ = 1")
    ]
    raw["cells"] = [raw["cells"][i] for i in left]
    raw["data"]["lines"] = [raw["data"]["lines"][i] for i in left]
    (tmp_path / "table2.json").write_text(json.dumps(raw))
    tables.table2(Options(tmp_path, seeds=2, settings=TOY, finished=True))
    text = (tmp_path / "table2.md").read_text()
    rows = [line.split(" |")[0] for line in text.splitlines() if line.startswith("| σ = ")]
    assert rows[:4] == sorted(rows[:4])
    assert len(set(rows)) == 4


def test_epsilon_under_both_conventions():
    """Section 1 of the paper's accounting: Table 3, z = 1.5, uniform: 5.23 printed, more added."""
    place = next(grids.places("table3", grids.read("table3", Grid)))
    plan = resolve(place.cell, 0, Options(Path())).plan
    assert tables._epsilon(plan, "paper") == pytest.approx(5.23, rel=0.005)
    assert tables._epsilon(plan, "pld") == pytest.approx(8.05, rel=0.005)


def test_the_closed_form_is_silent_about_the_tight_noise():
    place = list(grids.places("table2", grids.read("table2", Grid)))[-1]
    plan = resolve(place.cell, 0, Options(Path())).resolved().plan
    assert tables._epsilon(plan, "closed-form") is None
    assert tables._epsilon(plan, "pld") <= place.values["epsilon"] == 9


@pytest.mark.parametrize("task", ["mnist", "demo", "cnn", "lstm"])
def test_server_rates_decode_and_hold_the_papers_rate(task):
    grid = grids.read("server-rates", dict[str, server_rates.Rates])[task]
    assert 1 in grid.rates
    assert 0 in grid.strengths
    assert grid.rates == sorted(grid.rates)
    for case in grid.cases:
        recipe = resolve(server_rates._cell(grid, case, 0.5, 0.7), 0, Options(Path()))
        assert (recipe.denoiser.strength, recipe.server_rate) == (0.5, 0.7)
        assert recipe.diagnose == (grid.choose_by == "validation")


def rated(strength, rate, accuracies, scores):
    facts = {"case": "c", "epsilon": 1.0, "delta": 0.1}
    return facts | {
        "strength": strength,
        "server_rate": rate,
        "accuracies": accuracies,
        "scores": scores,
    }


def test_a_rate_is_chosen_by_what_validates_not_by_what_tests():
    cells = [
        rated(0, 0.5, [0.80, 0.82], [0.9, 0.9]),
        rated(0, 1, [0.70, 0.70], [0.8, 0.8]),
        rated(0, 2, [0.99, 0.99], [0.1, 0.1]),  # flatters itself on the test samples only
        rated(1, 0.5, [0.60, 0.60], [0.2, 0.2]),
        rated(1, 1, [0.83, 0.83], [0.9, 0.9]),
        rated(1, 2, [0.10, 0.10], [0.1, 0.1]),
    ]
    text = server_rates._section("c", cells)
    assert "| DP-Fed, σ = 0 | 0.5 (the end of those tried) | 81.00 ± 1.41 | 70.00 ± 0.00 |" in text
    assert "| DP-Fed-LS, σ = 1 | 1 | 83.00 ± 0.00 | 83.00 ± 0.00 |" in text
    assert "gains +13.00 points at η_g = 1, and +2.00 where" in text
    assert "+11.00 come from the length of the step, +2.00 from smoothing itself" in text
    assert "A best rate at the end of those tried may not be the best there is." in text
    wider = [rated(0, 0.2, [0.1, 0.1], [0.1, 0.1]), *cells]
    assert "the end of those tried" not in server_rates._section("c", wider)


def test_without_validation_a_seed_is_judged_by_what_others_chose():
    assert server_rates._scores("other seeds", [], [0.1, 0.5, 0.9]) == pytest.approx(
        [0.7, 0.5, 0.3]
    )
    with pytest.raises(InputError, match="give --seeds 2"):
        server_rates.demo(Options(Path(), seeds=1))


def test_server_rates_end_to_end(tmp_path):
    settings = (*TOY, "plan.rounds=1")
    item = server_rates.mnist(Options(tmp_path, seeds=1, settings=settings))
    assert len(item.cells) == 28
    assert all(0 <= cell["scores"][0] <= 1 for cell in item.cells)
    assert "| DP-Fed-LS, σ = 3 |" in (tmp_path / "server-rates-mnist.md").read_text()


def test_server_rates_in_part(tmp_path):
    only = ("σ = 0", "σ = 2", "η_g = 1", "η_g = 0.7")
    options = Options(tmp_path, seeds=1, settings=(*TOY, "plan.rounds=1"), only=only)
    item = server_rates.mnist(options)
    assert [(c["strength"], c["server_rate"]) for c in item.cells] == [
        (0, 0.7), (0, 1), (2, 0.7), (2, 1),
    ]  # fmt: skip
    assert "The best η_g, of 0.7, 1, and" in (tmp_path / "server-rates-mnist.md").read_text()
    for asked in (("σ = 0",), ("σ = 1", "σ = 2"), ("η_g = 2",), ("η_g = 1",)):
        with pytest.raises(InputError, match="ask for these cells too"):
            server_rates.mnist(replace(options, only=asked))


def test_a_task_without_validation_samples_is_refused():
    run = Run(Path(), {"task": "digits-logistic"}, [], [{"validation_accuracy": None}], [])
    with pytest.raises(InputError, match="'digits-logistic' has no validation samples"):
        server_rates._scores("validation", [run], [0.9])


def test_cells_of_svhn_are_listed_and_compared_over_the_seeds_they_have(tmp_path, monkeypatch):
    monkeypatch.setattr(svhn_cells, "TASK", "synthetic-logistic")
    options = Options(tmp_path, seeds=2, settings=(*TOY, "diagnose=true"))
    with pytest.raises(InputError, match="nothing to list"):
        svhn_cells.make(options)
    cells = [
        Cell("synthetic", (f"denoiser={{kind='laplacian', strength={s}, order='BCWH'}}", *own))
        for s in (0.0, 1.0)
        for own in ((), ("server_rate=0.5",), ("schedule=linear",))
    ]
    run_cells(cells, options)
    run_cells(cells[:1], replace(options, seeds=3))  # one cell has a seed more
    other = "denoiser={kind='laplacian', strength=1.0, order='BHWC'}"
    run_cells([Cell("synthetic", (other,))], options)  # Table 5's: not to be taken for another
    item = svhn_cells.make(options)
    assert len(item.cells) == 6
    assert sorted(len(cell["accuracy_by_seed"]) for cell in item.cells) == [2] * 5 + [3]
    page = item.files[1].read_text(encoding="utf-8")
    line = [x for x in page.splitlines() if x.startswith("| Poisson | 1 |")][-1]
    constant = [c for c in item.cells if (c["strength"], c["schedule"]) == (0.0, "constant")]
    best = max(constant, key=lambda c: mean(c["validation_by_seed"].values()))
    tested = best["accuracy_by_seed"].values()
    assert line.split("|")[3].strip(" *").startswith(f"{100 * mean(tested):.2f} ±")
    assert f"({len(tested)}) at" in line.split("|")[3]
    assert line.count("**") == 2
