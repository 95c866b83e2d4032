from __future__ import annotations

import json

import pytest

from dpfedls.errors import InputError
from dpfedls.paper import grids, realised_cohort
from dpfedls.paper.cells import Cell, resolve
from dpfedls.paper.choices import Choices, _cell, make
from dpfedls.paper.item import Options
from dpfedls.runs import recipes
from dpfedls.runs.simulate import start

TINY = (
    "task=synthetic-logistic",
    "plan.num_clients=30",
    "plan.rounds=3",
    "local.epochs=1",
    "evaluate_every=1",
)


def test_every_choice_changes_one_setting_of_the_papers(tmp_path):
    grid = grids.read("choices", dict[str, Choices])["mnist"]
    options = Options(tmp_path)
    base = resolve(_cell(grid, "clip norm", "0.3 (the paper's)", 1.0), 0, options)
    assert base == resolve(
        Cell("mnist-logistic", (*grid.settings, "denoiser.strength=1")), 0, options
    )
    assert (base.plan.clip_norm, base.averaging, base.schedule) == (0.3, 0.0, "constant")
    found = [
        resolve(_cell(grid, group, row, 1.0), 0, options)
        for group, content in grid.groups.items()
        for row in content.rows
    ]
    assert sum(recipe == base for recipe in found) == 4  # each group but the last starts there
    assert len({recipes.fingerprint(recipe) for recipe in found}) == len(found) - 3


def test_choices_show_validation_beside_test_and_mark_the_best_by_validation(tmp_path):
    settings = (*TINY, "plan.noise_multiplier=0.1")
    only = ("which iterate", "r = 0: the last", "r = 1: the mean of all", "σ = 0")
    item = make("mnist", Options(tmp_path / "out", seeds=2, settings=settings, only=only))
    last, mean = item.cells
    assert last["validations"] != last["accuracies"]
    better = max(item.cells, key=lambda cell: cell["validation_mean"])
    lines = item.files[1].read_text(encoding="utf-8").splitlines()
    shown = next(line for line in lines if line.startswith(f"| {better['row']} |"))
    assert f"**{100 * better['validation_mean']:.2f} ±" in shown
    assert last["validation_mean"] != mean["validation_mean"]
    without = (*settings, "task=digits-logistic")
    with pytest.raises(InputError, match="has no validation samples"):
        make("mnist", Options(tmp_path / "none", seeds=1, settings=without, only=only))


def test_the_realised_cohort_is_the_expected_one_where_everybody_comes(tmp_path):
    everybody = [*TINY, "plan.sampler={kind='poisson', rate=1.0}", "plan.noise_multiplier=0.5"]
    recipe = recipes.read("synthetic", everybody).resolved()
    assert realised_cohort.accuracy(recipe) == start(recipe, tmp_path / "run").accuracy


def test_the_realised_cohort_changes_the_step_where_few_come(tmp_path):
    few = [*TINY, "plan.sampler={kind='poisson', rate=0.1}", "plan.noise_multiplier=2.0"]
    recipe = recipes.read("synthetic", few).resolved()
    assert realised_cohort.accuracy(recipe) != start(recipe, tmp_path / "run").accuracy


def test_no_recipe_can_ask_for_the_realised_cohort():
    for setting in ("denominator=realised", "plan.denominator=realised", "plan.expected_cohort=3"):
        with pytest.raises(InputError):
            recipes.read("synthetic", [setting])


def test_the_realised_cohorts_page_says_that_it_is_not_private(tmp_path):
    options = Options(tmp_path, seeds=1, settings=TINY, only=("ε 7",))
    item = realised_cohort.make(options)
    facts = json.loads(item.files[0].read_text(encoding="utf-8"))
    assert "NOT private" in facts["title"]
    assert [cell["row"] for cell in item.cells] == ["σ = 0", "σ = 1"]
    assert all(len(cell["by_realised"]) == 1 for cell in item.cells)
    # Only the private runs left folders.
    assert len(list((tmp_path / "runs").iterdir())) == 2
