from __future__ import annotations

import pytest
import torch

import dpfedls
from dpfedls import InputError
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs.catalogue import catalogue
from dpfedls.tasks.synthetic import make

NAMES = recipes.names()


def test_every_recipe_is_found_and_described():
    assert len(NAMES) == 16
    listed = catalogue()
    assert [entry["name"] for entry in listed] == NAMES
    assert all(len(entry["about"]) > 20 for entry in listed)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_decodes_runs_two_toy_rounds_and_survives_its_own_toml(name, tmp_path):
    recipe = recipes.read(name).resolved()
    again = tmp_path / "again.toml"
    again.write_text(recipes.encode(recipe), encoding="utf-8")
    assert recipes.read(str(again)) == recipe
    noise = recipe.plan.noise_multiplier
    # Noise given instead of ε would leave nothing to choose the rest by.
    promise = "calibrate.epsilon=8" if recipe.chosen else f"plan.noise_multiplier={noise}"
    toy = recipes.read(name, ["plan.rounds=2", "plan.num_clients=60", promise])
    toy = toy.resolved()
    task = make(60, SeededStreams(0))
    result = dpfedls.train(
        model=task.model,
        clients=task.data,
        plan=toy.plan,
        local=toy.local,
        denoiser=toy.denoiser,
        server_rate=toy.server_rate,
        test=task.test,
    )
    assert len(result.history) == 2
    assert torch.isfinite(torch.tensor(result.loss))


def test_settings_lie_over_the_recipe():
    recipe = recipes.read(
        "synthetic",
        ["plan.rounds=7", "denoiser={kind='identity'}", "task=digits-logistic", "seed=4"],
    )
    assert (recipe.plan.rounds, recipe.task, recipe.seed) == (7, "digits-logistic", 4)
    assert recipe.denoiser == dpfedls.Identity()


def test_noise_by_hand_replaces_the_recipes_calibration():
    recipe = recipes.read("synthetic", ["plan.noise_multiplier=0.5"])
    assert recipe.calibrate is None
    assert recipe.resolved().plan.noise_multiplier == 0.5


def test_a_recipe_calibrates_to_its_promise():
    plan = recipes.read("synthetic", ["calibrate.epsilon=1.5"]).resolved().plan
    assert 1.5 * 0.999 <= plan.epsilon() <= 1.5


def test_two_promises_that_disagree_are_refused(tmp_path):
    path = tmp_path / "both.toml"
    text = recipes.encode(recipes.read("synthetic").resolved())
    path.write_text(text.replace("epsilon = 2.0", "epsilon = 1.0"), encoding="utf-8")
    with pytest.raises(InputError, match="the two disagree about the promise"):
        recipes.read(str(path)).resolved()


def test_a_recipe_without_noise_says_what_to_give():
    recipe = recipes.read("synthetic")
    table = recipes.table("synthetic")
    del table["calibrate"]
    assert recipe.calibrate is not None
    with pytest.raises(InputError, match=r"give plan\.noise_multiplier, or calibrate\.epsilon"):
        recipes.decode(table, "synthetic", []).resolved()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("plan.roundz=3", "unknown key 'plan.roundz'; did you mean 'plan.rounds'"),
        ("tsk='x'", "unknown key 'tsk'; did you mean 'task'"),
        ("denoiser.strenght=1", "did you mean 'denoiser.strength'"),
        ("denoiser.kind=lapl", "denoiser.kind: 'lapl'; known: .*, laplacian"),
        ("plan.sampler.kind=uniform", "known: fixed, poisson"),
        ("plan.sampler.rat=1", "did you mean 'plan.sampler.rate'"),
        ("local.projection=end", "known: final, step"),
        ("plan.rounds=ten", "plan.rounds = 'ten' must be a whole number"),
        ("plan.rounds=0", "rounds must be >= 1"),
        ("plan.sampler.rate=0", r"rate must be in \(0, 1\]"),
        ("plan.clip_norm=-1", "clip_norm must be > 0"),
        ("denoiser.strength=-1", "strength must be a finite number >= 0"),
        ("plan.delta=1.5", "delta must be in"),
        ("budget=0", "budget must be a finite number > 0"),
        ("budget=inf", "budget must be a finite number > 0"),
        ("server_rate=inf", "server_rate must be a finite number > 0"),
        ("local.learning_rate=inf", "learning_rate must be a finite number > 0"),
        ("plan.noise_multiplier=1e308", "noise_multiplier must be 0"),
        ("plan.noise_multiplier=1e-200", "noise_multiplier must be 0"),
        ("plan.rounds=10000000", "at most a million"),
        ("calibrate.accountant=paper", "known: closed-form, pld, rdp"),
        ("averaging=2", "averaging must be in"),
        ("rounds", "is not key=value"),
        ("task.x=1", "'task' is a value and has no parts"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(setting, message):
    with pytest.raises(InputError, match=message) as caught:
        recipes.read("synthetic", [setting])
    assert "\n" not in str(caught.value)


def test_unknown_recipes_and_broken_files(tmp_path):
    with pytest.raises(InputError, match="did you mean 'synthetic'"):
        recipes.read("syntetic")
    with pytest.raises(InputError, match="is not there"):
        recipes.read(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("task = 'x'\n[plan\n")
    with pytest.raises(InputError, match="line 2"):
        recipes.read(str(broken))


def test_a_recipe_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    marked = tmp_path / "marked.toml"
    marked.write_text(recipes.encode(recipes.read("synthetic")), encoding="utf-8-sig")
    assert recipes.read(str(marked)) == recipes.read("synthetic")


def test_fingerprints_tell_recipes_apart():
    a, b = recipes.read("synthetic"), recipes.read("synthetic", ["seed=1"])
    assert recipes.fingerprint(a) == recipes.fingerprint(recipes.read("synthetic"))
    assert recipes.fingerprint(a) != recipes.fingerprint(b)


@pytest.mark.parametrize("rate", ["1e-320", "1e-9"])
def test_a_rate_that_draws_nobody_is_refused_before_anything_is_paid(rate):
    with pytest.raises(InputError, match="people a round on average"):
        recipes.read("synthetic", ["plan.num_clients=60", f"plan.sampler.rate={rate}"])
