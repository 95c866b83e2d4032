from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedls import InputError
from dpfedls.paper import cells, provenance
from dpfedls.paper.cells import Cell, resolve, run_cells
from dpfedls.paper.data import describe
from dpfedls.paper.figures.lines import data_of
from dpfedls.paper.item import Options, RunsFailed
from dpfedls.runs import simulate as runs

SMALL = ("plan.num_clients=60", "plan.rounds=3", "plan.noise_multiplier=1.0")
PLAIN = Cell("synthetic", ("denoiser.strength=0",))
SMOOTHED = Cell("synthetic", ("denoiser.strength=2",))


def options(out, **changes):
    return Options(out, **{"seeds": 2, "settings": SMALL, **changes})


def weights(folder):
    return load_file(folder / "model.safetensors")["weight"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two cells, two seeds, one of the cells asked for twice."""
    out = tmp_path_factory.mktemp("made")
    return out, run_cells([PLAIN, SMOOTHED, PLAIN], options(out))


def test_equal_runs_are_made_once(made):
    out, found = made
    assert len(list((out / "runs").iterdir())) == 4
    assert [r.folder for r in found[0]] == [r.folder for r in found[2]]
    assert [r.summary["seed"] for r in found[1]] == [0, 1]
    assert [r.summary["strength"] for row in found for r in row] == [0, 0, 2, 2, 0, 0]
    assert all(len(r.rounds) == r.summary["rounds"] == 3 for row in found for r in row)


def test_finished_runs_are_not_touched_by_another_item(made):
    out, found = made
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    said = []
    again = run_cells([SMOOTHED], options(out, say=said.append))
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert again[0] == found[1]
    assert said == ["2/2 runs are there already"]


def test_an_interrupted_run_is_gone_on_with(made, tmp_path):
    _, found = made
    recipe = resolve(PLAIN, 0, options(tmp_path))

    class Stop(Exception):
        pass

    def stop(log):
        if log.round == 2:
            raise Stop

    with pytest.raises(Stop):
        runs.start(recipe, tmp_path / "runs" / found[0][0].folder.name, [stop])
    ((run,),) = run_cells([PLAIN], options(tmp_path, seeds=1))
    assert [line.round for line in run.rounds] == [1, 2, 3]
    assert run.folder.name == found[0][0].folder.name
    assert np.array_equal(weights(run.folder), weights(found[0][0].folder))


def test_an_item_names_what_made_its_runs_not_what_collects_them(tmp_path, monkeypatch):
    """Gone on with by other code, a run names both; an item names each once."""
    monkeypatch.setattr(provenance, "commit", lambda: "first")

    def stop(log):
        if log.round == 2:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        cells._make(cells._job(PLAIN, 0, options(tmp_path)), stop)
    monkeypatch.setattr(provenance, "commit", lambda: "second")
    found = run_cells([PLAIN, SMOOTHED], options(tmp_path, seeds=1))
    noted = [[(o.commit, o.since) for o in run.origins] for (run,) in found]
    assert noted == [[("first", 1), ("second", 3)], [("second", 1)]]
    monkeypatch.setattr(provenance, "commit", lambda: "third")

    def made_by(runs):
        facts = provenance.provenance(options(tmp_path), "item", 0.0, runs)
        assert (facts["runs"], facts["written_by"]) == (len(runs), "third")
        return [line.split(" on ")[0] for line in facts["made_by"]]

    assert made_by(found) == ["commit first", "commit second"]
    assert made_by(()) == ["commit third"]
    notes = found[0][0].folder / "made-by.jsonl"
    for text in ("", notes.read_text().splitlines()[1], "cut sh\n" + notes.read_text()):
        notes.write_text(text)  # none, none of the first rounds, one that cannot be read
        assert provenance.read_origins(notes.parent)[0].commit == "not noted"


def test_a_run_that_cannot_start_does_not_stop_the_others(made, tmp_path):
    """And several at a time give the same bits as one after the other."""
    said = []
    with pytest.raises(InputError, match=r"1 of 3 runs failed.*task=nothing seed=0: unknown task"):
        run_cells(
            [PLAIN, Cell("synthetic", ("task=nothing",)), SMOOTHED],
            options(tmp_path, seeds=1, jobs=2, say=said.append),
        )
    assert sum("FAILED" in line for line in said) == 1
    assert said[-1].startswith("3/3 runs, about 0 s left: ")
    said.clear()
    again = run_cells([PLAIN, SMOOTHED], options(tmp_path, seeds=1, say=said.append))
    assert said == ["2/2 runs are there already"]
    for (one, _), (two,) in zip(made[1], again, strict=False):
        assert np.array_equal(weights(one.folder), weights(two.folder))
        assert one.summary["accuracy"] == two.summary["accuracy"]


def test_a_run_that_breaks_is_told_apart_from_wrong_input(made, tmp_path, caplog, monkeypatch):
    broken, really = made[1][0][0].folder.name, cells.start

    def start(recipe, folder, watch):
        if folder.name == broken:
            raise ZeroDivisionError("a mistake of ours")
        return really(recipe, folder, watch)

    monkeypatch.setattr(cells, "start", start)
    with pytest.raises(RunsFailed, match=r"1 of 2 runs failed, the others are finished and kept"):
        run_cells([PLAIN, SMOOTHED], options(tmp_path, seeds=1))
    assert "Traceback" in caplog.text
    assert len(list((tmp_path / "runs").glob("*/privacy.json"))) == 1


def test_settings_for_everything_are_laid_over_those_of_a_cell(tmp_path):
    cell = Cell("synthetic", ("plan.rounds=9", "calibrate.epsilon=3"))
    recipe = resolve(cell, 4, options(tmp_path))
    assert (recipe.plan.rounds, recipe.plan.noise_multiplier, recipe.seed) == (3, 1.0, 4)
    assert recipe.calibrate is None
    calibrated = resolve(Cell("demo", ("calibrate.epsilon=3",)), 0, Options(tmp_path))
    assert calibrated.plan.noise_multiplier is None


def test_runs_of_another_machine_are_read_without_its_device_or_their_weights(made, tmp_path):
    """What is carried from a GPU: logs and statement, not the models."""
    elsewhere = options(tmp_path, seeds=1, device="cuda:99")
    job = cells._job(PLAIN, 0, elsewhere)
    job.folder.mkdir(parents=True)
    for name in ("recipe.toml", "rounds.jsonl", "privacy.json", "made-by.jsonl"):
        (job.folder / name).write_bytes((made[1][0][0].folder / name).read_bytes())
    ((found,),) = run_cells([PLAIN], elsewhere)
    assert found.summary["accuracy"] == made[1][0][0].summary["accuracy"]
    with pytest.raises(InputError, match="device 'cuda:99' is not there"):
        run_cells([PLAIN, SMOOTHED], elsewhere)


def test_the_time_left_is_told_once_half_a_run_is_made(tmp_path, monkeypatch):
    job = cells._job(PLAIN, 0, options(tmp_path))
    moments = iter([0, 30, 30, 60, 60])
    monkeypatch.setattr(cells.time, "perf_counter", lambda: next(moments))
    said = []
    progress = cells._Progress(said.append, 4, 0)
    for k in (1, 2):
        progress.round(job, cells.RoundRecord(round=k, epsilon=None))
    name = "synthetic denoiser.strength=0 seed=0"
    assert said == [
        f"0/4 runs: {name}, round 1/3",
        f"0/4 runs, about 5 min left: {name}, round 2/3",
    ]


def test_a_title_names_all_that_the_runs_say_they_were_trained_on(made, monkeypatch, tmp_path):
    assert data_of(made[1]) == "synthetic-logistic"
    monkeypatch.setattr(cells, "describe", lambda task, clients: f"{clients} strangers")
    others = run_cells([PLAIN], options(tmp_path, seeds=1))
    assert data_of(others) == "60 strangers"
    assert data_of([*others, *made[1]]) == "60 strangers and synthetic-logistic"


def test_all_seeds_of_a_lower_rank_are_run_first(tmp_path, monkeypatch):
    taken, make = [], cells._make

    def noted(job, watch):
        taken.append((job.rank, job.recipe.seed, job.recipe.denoiser.strength))
        return make(job, watch)

    monkeypatch.setattr(cells, "_make", noted)
    later = Cell(PLAIN.recipe, PLAIN.settings, rank=1)
    found = run_cells([later, SMOOTHED], options(tmp_path))
    assert taken == [(0, 0, 2.0), (0, 1, 2.0), (1, 0, 0.0), (1, 1, 0.0)]
    assert [run.summary["strength"] for row in found for run in row] == [0, 0, 2, 2]


def test_a_stand_in_says_that_it_is_one_and_the_attacked_are_counted():
    assert describe("street-digits-cnn-pretrained", 2000).endswith("NOT SVHN")
    assert describe("svhn-attack", 500) == "64,000 images of SVHN"
    assert describe("somebodys-own", 3) == "somebodys-own"
